"use strict";
// Pays ten times, and says what came of it.
document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("pay"), summary = document.getElementById("paid");
  button.addEventListener("click", async () => {
    const token = document.querySelector("[name=csrfmiddlewaretoken]").value, counts = {};
    let retry = "";
    button.disabled = true;
    for (let number = 0; number < 10; number++) {
      const answer = await fetch(button.dataset.url, {method: "POST", headers: {"X-CSRFToken": token, Accept: "application/json"}});
      counts[answer.status] = (counts[answer.status] || 0) + 1;
      if (answer.headers.get("Retry-After")) retry = ` Try again in ${answer.headers.get("Retry-After")} s.`;
    }
    const words = {200: "paid", 502: "failed", 503: "not asked: the breaker is open"};
    summary.textContent = Object.entries(counts).map(([status, count]) => `${count} ${words[status] || status}`).join(", ") + "." + retry;
    button.disabled = false;
  });
});

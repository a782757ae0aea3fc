"use strict";
// Says beside the name of a rule which limits of the code it takes the place of, while the name is typed.
document.addEventListener("DOMContentLoaded", () => {
  const note = document.querySelector("[data-call-site-url]");
  const name = document.getElementById("id_name");
  if (!note || !name) return;
  name.closest(".form-row").append(note);
  let timer = 0, latest = 0;

  async function show() {
    const number = ++latest;
    const answer = await fetch(`${note.dataset.callSiteUrl}?name=${encodeURIComponent(name.value)}`, {credentials: "same-origin"});
    const text = await answer.text();
    if (number === latest && answer.ok) note.innerHTML = text;
  }
  name.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show().catch(() => {}), 200);
  });
});

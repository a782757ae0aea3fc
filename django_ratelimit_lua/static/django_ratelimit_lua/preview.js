"use strict";
// Shows what the rule in the form would do, asked of the server whenever the form has changed; beside the numbers.
document.addEventListener("DOMContentLoaded", () => {
  const box = document.querySelector("[data-preview-url]");
  if (!box) return;
  const form = box.closest("form");
  const into = box.querySelector("[data-preview-into]");
  const numbers = form.querySelector("fieldset.ratelimit-limit");
  if (numbers) {
    const columns = document.createElement("div"), left = document.createElement("div");
    columns.className = "ratelimit-columns";
    left.append(...numbers.querySelectorAll(":scope > .form-row"));
    columns.append(left, box);
    numbers.append(columns);
  }
  let timer = 0, latest = 0;

  async function show() {
    const number = ++latest;
    const answer = await fetch(box.dataset.previewUrl, {
      method: "POST", body: new FormData(form), credentials: "same-origin", redirect: "manual",
      headers: {"X-Requested-With": "XMLHttpRequest"},
    });
    const text = await answer.text();
    if (number !== latest) return;
    if (answer.type === "opaqueredirect" || answer.status === 403) {  // To the login.
      const ended = document.createElement("p");
      ended.className = "ratelimit-note";
      ended.textContent = into.dataset.ended;
      into.replaceChildren(ended);
    } else if (answer.ok) {
      into.innerHTML = text;
      into.dataset.shown = number;
    }
  }
  function soon() {
    clearTimeout(timer);
    timer = setTimeout(() => show().catch(() => {}), 250);
  }
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  box.querySelector("[data-preview-button]").addEventListener("click", (event) => {
    event.preventDefault();
    show().catch(() => {});
  });
  soon();
});

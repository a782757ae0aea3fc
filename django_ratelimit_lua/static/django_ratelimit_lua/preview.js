"use strict";
// Shows the effect of the values in a form. The server describes it again whenever they change.
document.addEventListener("DOMContentLoaded", () => {
  const box = document.querySelector("[data-preview-url]"), form = box?.closest("form");
  if (!form) return;
  const into = box.querySelector("[data-preview-into]");
  let timer = 0, latest = 0;
  const show = async () => {
    const number = ++latest;
    const answer = await fetch(box.dataset.previewUrl, {method: "POST", body: new FormData(form), credentials: "same-origin", redirect: "manual"});
    const text = await answer.text();
    if (number !== latest) return;
    if (answer.ok) into.innerHTML = text;
    else if (answer.type === "opaqueredirect" || answer.status === 403) into.textContent = into.dataset.ended;
    into.dataset.shown = number;
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(() => show().catch(() => {}), 250);
  };
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  box.querySelector("[data-preview-button]")?.addEventListener("click", (event) => {
    event.preventDefault();
    show().catch(() => {});
  });
  soon();
});

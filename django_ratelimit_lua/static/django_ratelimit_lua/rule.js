"use strict";
// The form of a rule: shows the fields that have an effect, and draws the plot again.
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("ratelimitrule_form"), box = form?.querySelector("[data-url]");
  if (!box) return;
  const field = (name) => document.getElementById(`id_${name}`);
  const {options, algorithm} = JSON.parse(document.getElementById("ratelimit-conditions").textContent);

  // The same as `hidden_options` in admin/choices.py.
  const has = (name) => {
    const input = field(name);
    return input ? (input.type === "checkbox" ? input.checked : input.value.trim() !== "") : false;
  };
  const fit = () => {
    const chosen = field("algorithm").value || algorithm;
    for (const [name, {algorithms, excludes, needs}] of Object.entries(options)) {
      const isOther = algorithms.length > 0 && !algorithms.includes(chosen);
      const isError = field(name)?.closest(".form-row")?.classList.contains("errors");
      const isHidden = !has(name) && !isError && (isOther || excludes.some(has) || (needs && !has(needs)));
      field(name)?.toggleAttribute("data-hidden", Boolean(isHidden));
    }
  };

  let timer = 0, latest = 0;
  const draw = async () => {
    const number = ++latest;
    const answer = await fetch(box.dataset.url, {method: "POST", body: new FormData(form), credentials: "same-origin", redirect: "manual"});
    const text = await answer.text();
    if (number !== latest) return;
    if (answer.ok) box.innerHTML = text;
    else if (answer.type === "opaqueredirect" || answer.status === 403) box.textContent = box.dataset.ended;
    box.dataset.drawn = number;
  };
  const change = () => {
    fit();
    clearTimeout(timer);
    timer = setTimeout(() => draw().catch(() => {}), 250);
  };
  form.addEventListener("input", change);
  form.addEventListener("change", change);
  change();

  // A further row of tiers.
  const tiers = document.querySelector(".ratelimit-tiers"), add = tiers?.querySelector("button");
  if (add) {
    const total = form.querySelector("[name=tiers-TOTAL_FORMS]");
    add.hidden = false;
    add.addEventListener("click", () => {
      const row = document.createElement("template");
      row.innerHTML = tiers.querySelector("template").innerHTML.replaceAll("__prefix__", total.value);
      total.value = Number(total.value) + 1;
      const first = row.content.querySelector("input");
      add.before(row.content);
      first.focus();
    });
  }
});

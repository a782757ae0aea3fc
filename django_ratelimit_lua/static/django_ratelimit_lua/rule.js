"use strict";
// The form of a rule: shows the fields that have an effect, and adds rows of tiers.
document.addEventListener("DOMContentLoaded", () => {
  const field = (name) => document.getElementById(`id_${name}`);
  const form = document.getElementById("ratelimitrule_form"), conditions = document.getElementById("ratelimit-conditions");
  if (!field("algorithm") || !conditions) return;
  const {options, algorithm} = JSON.parse(conditions.textContent);

  // The same as `hidden_options` in admin/forms.py.
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

  form.addEventListener("input", fit);
  form.addEventListener("change", fit);
  fit();

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

"use strict";
// The form of a rule: what it counts by, in words, only the options that its algorithm takes, and what it takes the place of.
document.addEventListener("DOMContentLoaded", () => {
  const field = (name) => document.getElementById(`id_${name}`);

  // Beside the name: the limits in code that the rule replaces, while the name is typed.
  const note = document.querySelector("[data-call-site-url]");
  const name = field("name");
  if (note && name) {
    name.closest(".form-row").append(note);
    let timer = 0, latest = 0;
    const show = async () => {
      const number = ++latest;
      const answer = await fetch(`${note.dataset.callSiteUrl}?name=${encodeURIComponent(name.value)}`, {
        credentials: "same-origin", redirect: "manual",
      });
      const text = await answer.text();
      if (number === latest && answer.ok) {
        note.innerHTML = text;
        note.dispatchEvent(new Event("shown"));
      }
    };
    name.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => show().catch(() => {}), 200);
    });
    if (name.value) show().catch(() => {});
    if (name.dataset.focus) window.addEventListener("load", () => name.focus());  // Django focuses the first button.
  }

  // Above the key: a choice in words that makes it. Only valid keys are offered: that of the code if the rule replaces a limit there,
  // "all callers" only alone, and nothing twice.
  const key = field("key"), part = document.getElementById("ratelimit-key-part");
  if (key && part) {
    const parts = document.createElement("div");
    const more = document.getElementById("ratelimit-key-more").content.cloneNode(true).querySelector("button");
    parts.className = "ratelimit-key";
    const label = document.querySelector("label[for=id_key]");
    key.closest(".form-row").prepend(...[label, parts, more].filter(Boolean));

    const make = () => {
      const texts = [...parts.children].map((row) => {
        const kind = row.querySelector("select").value;
        const text = row.querySelector("input").value.trim();
        return kind === "other" ? text : kind.endsWith(":") ? kind + text : kind;
      });
      key.value = texts.filter(Boolean).join("+");
      key.dispatchEvent(new Event("input", {bubbles: true}));
    };
    const fit = () => {
      const selects = [...parts.querySelectorAll("select")], isOnly = selects.length < 2;
      const replaces = note?.querySelector("[data-has-key]") && !field("path")?.value.trim() && !field("route")?.value.trim();
      for (const select of selects) {
        const row = select.parentElement, others = selects.filter((each) => each !== select).map((each) => each.value);
        row.querySelector("input").hidden = !(select.value === "other" || select.value.endsWith(":"));
        row.querySelector("button").hidden = isOnly;
        for (const option of select.options) {
          const isOnlyAlone = ["", "all"].includes(option.value), canRepeat = option.value === "other" || option.value.endsWith(":");
          option.hidden = option.disabled = !option.selected && ((!isOnly && isOnlyAlone) || (!canRepeat && others.includes(option.value)));
        }
        const blank = select.options[0];
        blank.textContent = replaces ? blank.dataset.asInCode : "---------";
      }
      more.hidden = isOnly && ["", "all"].includes(selects[0]?.value);
    };
    const add = (text) => {
      const row = part.content.cloneNode(true).querySelector("div");
      const select = row.querySelector("select"), input = row.querySelector("input");
      const kinds = [...select.options].map((option) => option.value);
      const kind = kinds.includes(text) ? text : kinds.find((one) => one.endsWith(":") && text.startsWith(one)) ?? "other";
      select.value = kind;
      input.value = kind === "other" ? text : text.slice(kind.length);
      for (const kind of ["input", "change"]) {
        row.addEventListener(kind, (event) => { event.stopPropagation(); fit(); make(); });
      }
      row.querySelector("button").addEventListener("click", () => { row.remove(); fit(); make(); });
      parts.append(row);
      fit();
      return row;
    };
    const read = () => {
      parts.replaceChildren();
      key.value.split("+").map((text) => text.trim()).forEach(add);
    };
    const next = () => [...parts.querySelectorAll("select")[0].options].find((option) => option.value && !option.disabled && !option.selected && option.value !== "all").value;
    more.addEventListener("click", () => add(next()).querySelector("select").focus() ?? make());
    key.addEventListener("change", read);
    note?.addEventListener("shown", fit);
    for (const place of [field("path"), field("route")]) place?.addEventListener("input", fit);
    read();
  }

  // A further row of tiers.
  const tiers = document.querySelector(".ratelimit-tiers");
  if (tiers) {
    const add = tiers.querySelector("button"), rows = tiers.getElementsByClassName("ratelimit-tier");
    const total = document.querySelector("[name=tiers-TOTAL_FORMS]");
    add.hidden = false;
    add.addEventListener("click", () => {
      const row = document.createElement("template");
      row.innerHTML = tiers.querySelector("template").innerHTML.replaceAll("__prefix__", total.value);
      total.value = Number(total.value) + 1;
      add.before(row.content);
      rows[rows.length - 1].querySelector("input").focus();
    });
  }

  // Only what the algorithm takes; and what has a value, so that nothing is kept unseen.
  const takes = document.getElementById("ratelimit-takes"), algorithm = field("algorithm");
  if (takes && algorithm) {
    const taken = JSON.parse(takes.textContent);
    const options = [...new Set(Object.values(taken).flat())];
    const has = (input) => input.type === "checkbox" ? input.checked : input.value !== "";
    const fit = () => {
      for (const option of options) {
        const input = field(option);
        if (!input) continue;
        const needsCalendar = option === "time_zone" && !["day", "week", "month"].includes(field("align")?.value);
        const isUsed = has(input) || input.closest(".form-row").classList.contains("errors");
        input.closest(".form-row").hidden = !isUsed && (needsCalendar || !taken[algorithm.value].includes(option));
      }
      const groups = field("groups"), audience = field("audience");
      if (groups && audience) {
        const isTicked = groups.querySelector("input:checked") !== null;
        groups.closest(".form-row").hidden = audience.value !== "groups" && !isTicked;
      }
    };
    document.getElementById("ratelimitrule_form")?.addEventListener("change", fit);
    fit();
  }
});

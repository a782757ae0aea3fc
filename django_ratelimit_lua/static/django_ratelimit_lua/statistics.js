"use strict";
// The overview refreshes itself while it is seen; on the page of one rule, a slider moves along the refusal curve.
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector(".ratelimit-fresh");
  if (bar) refresh(bar);
  document.querySelectorAll("[data-curve]").forEach(choose);

  function refresh(bar) {
    const wanted = bar.querySelector("input"), said = bar.querySelector("[role=status]");
    let timer = 0, last = Date.now(), isEnded = false;
    bar.hidden = false;

    function soon() {
      clearTimeout(timer);
      if (!isEnded && wanted.checked && !document.hidden) {
        timer = setTimeout(load, Math.max(0, last + 1000 * bar.dataset.every - Date.now()));
      }
    }
    async function load() {
      last = Date.now();
      try {
        const answer = await fetch(location.href, {credentials: "same-origin", redirect: "manual"});
        if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) {
          isEnded = true;
          wanted.checked = false;
          wanted.disabled = true;
          said.textContent = said.dataset.ended;
          return;
        }
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("ratelimit-live");
        if (!answer.ok || !fresh) throw new Error(answer.status);
        show(fresh);
        said.textContent = `${said.dataset.updated} ${new Date().toLocaleTimeString(document.documentElement.lang || undefined)}`;
      } catch {
        said.textContent = said.dataset.failed;
      }
      soon();
    }
    function show(fresh) {
      const live = document.getElementById("ratelimit-live"), focused = document.activeElement;
      const href = live.contains(focused) ? focused.getAttribute("href") : null;
      const scrolled = live.contains(focused) && focused.matches(".ratelimit-scroll");
      live.replaceChildren(...fresh.childNodes);
      const again = scrolled ? live.querySelector(".ratelimit-scroll")
        : href && [...live.querySelectorAll("a")].find((link) => link.getAttribute("href") === href);
      if (again) again.focus({preventScroll: true});
    }
    wanted.addEventListener("change", () => { last = 0; soon(); });
    document.addEventListener("visibilitychange", soon);
    soon();
  }

  function choose(box) {
    const points = JSON.parse(document.getElementById(box.dataset.curve).textContent);
    const number = box.querySelector("[type=number]"), range = box.querySelector("[type=range]");
    const answer = box.querySelector(".ratelimit-answer"), take = box.querySelector(".ratelimit-take");
    const line = box.querySelector("line.chosen");
    if (points.length < 2) return;
    range.hidden = false;
    range.max = points.length - 1;

    function show(place) {
      const point = points[place];
      answer.textContent = point.words;
      range.setAttribute("aria-valuetext", point.limit);
      if (take) take.href = take.dataset.url + number.value;
      if (line) ["x1", "x2"].forEach((name) => line.setAttribute(name, point.x));
    }
    function placeOf(limit) {
      let found = 0;
      points.forEach((point, place) => { if (point.limit <= limit) found = place; });
      return found;
    }
    range.value = placeOf(Number(number.value));
    range.setAttribute("aria-valuetext", number.value);
    range.addEventListener("input", () => {
      number.value = points[range.value].limit;
      if (take) take.parentElement.hidden = false;
      show(Number(range.value));
    });
    number.addEventListener("input", () => {
      const isOne = number.value !== "" && number.validity.valid;
      if (take) take.parentElement.hidden = !isOne;
      if (!isOne) {
        answer.textContent = number.validationMessage;
        return;
      }
      range.value = placeOf(Number(number.value));
      show(Number(range.value));
    });
  }
});

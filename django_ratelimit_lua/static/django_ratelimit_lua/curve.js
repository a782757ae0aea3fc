"use strict";
// A slider moves along the refusal curve.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("[data-curve]").forEach(choose);

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
    function showNumber(limit) {
      range.value = placeOf(limit);
      show(Number(range.value));
      if (limit > points[points.length - 1].limit) {
        answer.textContent = box.dataset.beyond.replace("{}", limit.toLocaleString(document.documentElement.lang || undefined));
      }
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
      showNumber(Number(number.value));
    });
  }
});

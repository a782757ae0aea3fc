"use strict";
// A page refreshes the part that changes while it is seen.
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector(".ratelimit-fresh");
  if (bar) refresh(bar);

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
});

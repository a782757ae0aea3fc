"use strict";
// Sends a burst of requests to one of the example's views and draws, as the answers come in, what became of each.

const form = document.getElementById("burst");
const plot = document.getElementById("plot");
const summary = document.getElementById("summary");
const detail = document.getElementById("detail");
const limits = document.getElementById("limits");
const HEIGHT = 320, LEFT = 34, RIGHT = 14, TOP = 12, BOTTOM = 26;

let burst = { results: [], span: 1, count: 1 };

const token = () => form.elements.csrfmiddlewaretoken.value;
const seconds = (value) => value < 10 ? `${value.toFixed(2)} s` : `${Math.ceil(value)} s`;

function request(target, rows) {
  const headers = { Accept: "application/json", "X-CSRFToken": token() };
  if (target === "login") {
    const body = new URLSearchParams({ username: "ada", password: "a guess" });
    return fetch("/login/", { method: "POST", headers, body });
  }
  if (target === "webhook") return fetch("/webhook/", { method: "POST", headers });
  if (target === "wp-login.php") return fetch("/wp-login.php", { headers });
  if (target.includes("?")) return fetch(`/${target}`, { headers });
  return fetch(target === "export" ? `/export/?rows=${rows}` : `/${target}/`, { headers });
}

async function send(index, target, rows, started) {
  const result = { index, sent: performance.now() - started, kind: "failed", limits: [] };
  try {
    const response = await request(target, rows);
    const isJson = (response.headers.get("Content-Type") || "").includes("json");
    const body = isJson ? await response.json() : {};
    result.limits = body.limits || [];
    result.retry = body.retry_after ?? response.headers.get("Retry-After");
    result.status = response.status;
    result.wait = body.wait || 0;
    result.kind = response.status === 429 ? "refused" : !response.ok && response.status !== 404 ? "failed" : result.wait > 0.001 ? "waited" : "admitted";
  } catch (error) {
    result.status = String(error);
  }
  result.answered = performance.now() - started;
  result.left = result.answered + 1000 * (result.wait || 0);
  return result;
}

function explain(result) {
  const when = `Request ${result.index + 1}, sent at ${(result.sent / 1000).toFixed(2)} s: `;
  if (result.kind === "failed") return `${when}failed (${result.status}).`;
  if (result.kind === "waited") return `${when}its turn came ${seconds(result.wait)} later.`;
  if (result.kind === "admitted") return `${when}admitted.`;
  const by = result.limits.filter((limit) => !limit.allowed).map((limit) => limit.name).join(" and ");
  const retry = result.retry == null ? "it could never fit." : `it would fit in ${seconds(Number(result.retry))}.`;
  return `${when}refused by ${by || "the limit"}; ${retry}`;
}

function element(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function draw() {
  const width = plot.clientWidth || 600;
  plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  plot.replaceChildren();
  const last = Math.max(burst.span, ...burst.results.map((result) => result.left / 1000), 0.5);
  const x = (time) => LEFT + (time / last) * (width - LEFT - RIGHT);
  const y = (index) => TOP + ((index + 0.5) / burst.count) * (HEIGHT - TOP - BOTTOM);
  const step = [0.1, 0.25, 0.5, 1, 2, 5, 10].find((size) => last / size <= Math.max(3, width / 110)) || 20;
  for (let time = 0; time <= last + 1e-9; time += step) {
    element("line", { class: "grid", x1: x(time), x2: x(time), y1: TOP, y2: HEIGHT - BOTTOM }, plot);
    element("text", { x: x(time), y: HEIGHT - 8, "text-anchor": "middle" }, plot).textContent = `${+time.toFixed(2)} s`;
  }
  for (const index of new Set([0, burst.count - 1])) {
    element("text", { x: LEFT - 8, y: y(index) + 4, "text-anchor": "end" }, plot).textContent = index + 1;
  }
  for (const result of burst.results) {
    const at = result.kind === "waited" ? result.left : result.sent;
    if (result.kind === "waited") {
      element("line", { class: `held ${result.kind}`, x1: x(result.sent / 1000), x2: x(at / 1000), y1: y(result.index), y2: y(result.index) }, plot);
    }
    const mark = element("circle", { class: `mark ${result.kind}`, cx: x(at / 1000), cy: y(result.index), r: 5, tabindex: 0 }, plot);
    mark.setAttribute("aria-label", explain(result));
    for (const event of ["pointerenter", "click", "focus"]) mark.addEventListener(event, () => { detail.textContent = explain(result); });
  }
}

function report() {
  const count = (kind) => burst.results.filter((result) => result.kind === kind).length;
  const parts = [`${count("admitted") + count("waited")} admitted`, `${count("refused")} refused`];
  if (count("waited")) parts.splice(1, 0, `${count("waited")} of them waiting their turn`);
  if (count("failed")) parts.push(`${count("failed")} failed`);
  const pending = burst.count - burst.results.length;
  summary.textContent = `${parts.join(", ")}${pending ? `, ${pending} to come` : ""}.`;
  const latest = burst.results.reduce((a, b) => (b.limits.length && (!a || b.answered > a.answered) ? b : a), null);
  limits.replaceChildren();
  for (const limit of latest ? latest.limits : []) {
    const label = document.createElement("label");
    const bar = document.createElement("progress");
    bar.max = limit.used + limit.remaining || 1;
    bar.value = limit.used;
    label.append(`${limit.name}: ${limit.used} used, ${limit.remaining} left, all free again in ${seconds(limit.reset_after)}`, bar);
    limits.append(label);
  }
  draw();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const target = form.elements.target.value;
  const count = Number(form.elements.count.value), span = Number(form.elements.spread.value), rows = form.elements.rows.value;
  const button = form.querySelector("button");
  button.disabled = true;
  burst = { results: [], span, count };
  detail.textContent = "Point at a dot, or tap it, to see why.";
  report();
  const started = performance.now();
  await Promise.all(Array.from({ length: count }, async (_, index) => {
    await new Promise((resolve) => setTimeout(resolve, (span * 1000 * index) / Math.max(count - 1, 1)));
    burst.results.push(await send(index, target, rows, started));
    report();
  }));
  button.disabled = false;
});

form.addEventListener("input", () => {
  form.querySelector("output[for=count]").textContent = form.elements.count.value;
  form.querySelector("output[for=spread]").textContent = `${form.elements.spread.value} s`;
  form.querySelector("output[for=rows]").textContent = form.elements.rows.value;
  document.getElementById("rows-label").hidden = form.elements.target.value !== "export";
});

document.getElementById("reset").addEventListener("click", async () => {
  await fetch("/reset/", { method: "POST", headers: { "X-CSRFToken": token() } });
  burst = { results: [], span: 1, count: 1 };
  limits.replaceChildren();
  draw();
  summary.textContent = "All counts are forgotten.";
});

window.addEventListener("resize", draw);
draw();

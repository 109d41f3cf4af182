// What every view needs: asking the service, wording figures, building rows.
export const $ = (id) => document.getElementById(id);
export const say = (text) => { $("message").textContent = text; };
export const number = (value, digits = 3) => value === null || value === undefined ? "—" : Number(value).toLocaleString("en", { maximumSignificantDigits: digits, useGrouping: false });
export const milli = (value) => value === null || value === undefined ? "—" : value === "Infinity" ? "∞" : number(value * 1000) + " ms";
export const unit = (objective) => objective === "tokens_per_joule" ? "tokens/J" : "tok/s";
export const saving = (found) => found && found.saving !== null ? `${(found.saving * 100).toFixed(1)} %${found.verified ? "" : " (not verified)"}` : "—";

export async function ask(path, options = {}) {
  const headers = options.body ? { "content-type": "application/json" } : {};
  const reply = await fetch(path, { ...options, headers, credentials: "same-origin" });
  const kind = reply.headers.get("content-type") || "";
  const found = kind.includes("json") ? await reply.json() : await reply.text();
  if (reply.status === 401 && path !== "/session") { location.reload(); }
  if (!reply.ok) { throw new Error(problem(found, reply.status)); }
  return found;
}

function problem(found, status) {
  const lines = (found.errors || []).map((one) => `${one.pointer || one.parameter || ""} ${one.detail}`);
  return lines.length ? lines.join("\n") : found.detail || `The service answered ${status}.`;
}

export async function attempt(work) {
  try { await work(); say(""); } catch (error) { say(error.message); }
}

// A visit to a view: what was asked for during one that is over is not shown any more, nor is its failure.
export function visits() {
  let latest = 0;
  return {
    begin() { const mine = ++latest; return { get over() { return mine !== latest; } }; },
    end() { latest++; },
  };
}

export async function attemptDuring(visit, work) {
  try { await work(); if (!visit.over) { say(""); } } catch (error) { if (!visit.over) { say(error.message); } }
}

const LONGEST = 30000; // ms between two tries to open a stream

// A stream of events that is opened again, later and later, after an answer that the browser takes for final (a busy
// service, a sign-in that has ended); it goes on after the last event that was seen. A connection that merely breaks the
// browser mends itself.
export function listen(address, handlers, trouble = () => {}) {
  let source = null, timer = 0, wait = 1000, last = null, closed = false;
  const open = () => {
    const url = new URL(address, location.href);
    if (last) { url.searchParams.set("after", last); }
    source = new EventSource(url);
    source.onopen = () => { wait = 1000; };
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => { if (closed) { return; } if (event.lastEventId) { last = event.lastEventId; } handle(event); });
    }
    source.addEventListener("error", () => {
      if (closed) { return; }
      trouble();
      if (source.readyState !== EventSource.CLOSED) { return; }
      timer = setTimeout(open, wait * (0.75 + Math.random() / 2));
      wait = Math.min(2 * wait, LONGEST);
    });
  };
  open();
  return { close() { closed = true; clearTimeout(timer); source.close(); } };
}

export function row(cells, className) {
  const line = document.createElement("tr");
  if (className) { line.className = className; }
  for (const cell of cells) {
    const box = document.createElement("td");
    if (cell instanceof Node) { box.append(cell); } else { box.textContent = cell; }
    if (box.textContent.length > 40) { box.className = "wrap"; }
    line.append(box);
  }
  return line;
}

export function head(text) {
  const box = document.createElement("th");
  box.scope = "col"; box.textContent = text;
  return box;
}

export function link(text, address) {
  const a = document.createElement("a");
  a.href = address; a.textContent = text;
  return a;
}

export function stateWord(state) {
  const span = document.createElement("span");
  span.className = `state-${state}`; span.textContent = state.replace("_", " ");
  return span;
}

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name).trim();
};

// Points of two figures; those that `chosen` holds are green, and joined if asked. The caller destroys the chart.
export function scatter(box, points, chosen, xLabel, yLabel, joined = false) {
  const colour = colours();
  const sorted = points.map((point, at) => ({ point, good: chosen[at] })).sort((a, b) => a.point[0] - b.point[0]);
  const data = [sorted.map((one) => one.point[0]), sorted.map((one) => one.point[1]), sorted.map((one) => one.good ? one.point[1] : null)];
  const axis = (label) => ({ label, stroke: colour("--dim"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } });
  return new uPlot({
    width: box.clientWidth || 600, height: 300, legend: { show: false }, scales: { x: { time: false } },
    axes: [axis(xLabel), axis(yLabel)],
    series: [{ label: xLabel },
      { label: "all", stroke: colour("--dim"), paths: () => null, points: { show: true, size: 7, fill: colour("--dim") } },
      { label: "chosen", stroke: colour("--good"), width: 2, spanGaps: true, ...(joined ? {} : { paths: () => null }), points: { show: true, size: 9, fill: colour("--good") } }],
  }, data, box);
}

export function line(box, data, label) {
  const colour = colours();
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line") } };
  return new uPlot({ width: box.clientWidth || 600, height: 220, axes: [axis, { ...axis, label }],
    series: [{}, { label, stroke: colour("--mark"), width: 2 }] }, data, box);
}

"use strict";
// The page: views by the part of the address after #, all data from the REST API of the same host.
(() => {
  const $ = (id) => document.getElementById(id);
  const views = ["studies", "study", "new", "devices"];
  const ended = ["succeeded", "no_feasible", "failed", "cancelled"];
  let source = null, timer = 0, chart = null, powerChart = null, current = null, sort = "number", asked = 0;

  const say = (text) => { $("message").textContent = text; };
  const number = (value, digits = 3) => value === null || value === undefined ? "—" : Number(value).toLocaleString("en", { maximumSignificantDigits: digits, useGrouping: false });
  const milli = (value) => value === null || value === undefined ? "—" : value === "Infinity" ? "∞" : number(value * 1000) + " ms";

  async function ask(path, options = {}) {
    const headers = options.body ? { "content-type": "application/json" } : {};
    const reply = await fetch(path, { ...options, headers, credentials: "same-origin" });
    const kind = reply.headers.get("content-type") || "";
    const document_ = kind.includes("json") ? await reply.json() : await reply.text();
    if (reply.status === 401 && path !== "/session") { location.reload(); }
    if (!reply.ok) { throw new Error(problem(document_, reply.status)); }
    return document_;
  }

  function problem(found, status) {
    const lines = (found.errors || []).map((one) => `${one.pointer || one.parameter || ""} ${one.detail}`);
    return lines.length ? lines.join("\n") : found.detail || `The service answered ${status}.`;
  }

  function row(cells, className) {
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

  function link(text, address) {
    const a = document.createElement("a");
    a.href = address; a.textContent = text;
    return a;
  }

  function stateWord(state) {
    const span = document.createElement("span");
    span.className = `state-${state}`; span.textContent = state.replace("_", " ");
    return span;
  }

  const saving = (found) => found && found.saving !== null ? `${(found.saving * 100).toFixed(1)} %${found.verified ? "" : " (not verified)"}` : "—";
  const unit = (objective) => objective === "tokens_per_joule" ? "tokens/J" : "tok/s";

  async function showStudies(cursor = null) {
    const page = await ask("/v1/studies?limit=50" + (cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""));
    const body = $("study-table").tBodies[0];
    const lines = page.items.map((one) => row([
      link(one.name + " · " + one.id, `#/study/${one.id}`), stateWord(one.state),
      one.progress ? `${one.progress.done} of ${one.progress.total}` : "—",
      one.progress && one.progress.best !== null ? `${number(one.progress.best)} ${unit(one.maximize)}` : "—",
      one.slos.join(", "), saving(one.recommendation)]));
    if (cursor) { body.append(...lines); } else { body.replaceChildren(...lines); }
    $("study-table").hidden = body.rows.length === 0;
    $("no-studies").hidden = body.rows.length !== 0;
    $("more").hidden = !page.next;
    $("more").onclick = () => attempt(() => showStudies(page.next));
    if (!cursor && page.items.length <= 50) { timer = setTimeout(() => attempt(() => showStudies()), 4000); }
  }

  async function showStudy(id) {
    current = await ask(`/v1/studies/${id}`);
    $("study-name").textContent = `${current.name} · ${current.id}`;
    standing(current.state, current.progress);
    heads();
    await trials();
    source = new EventSource(`/v1/studies/${id}/events`);
    let due = 0;
    const soon = () => { clearTimeout(due); due = setTimeout(() => attempt(trials), 300); };
    for (const kind of ["trial_finished", "trial_started", "study_finished", "state"]) { source.addEventListener(kind, soon); }
    source.addEventListener("standing", (event) => { const now = JSON.parse(event.data); standing(now.state, now.progress); });
    source.addEventListener("end", () => { source.close(); attempt(async () => { current = await ask(`/v1/studies/${id}`); standing(current.state, current.progress); await trials(); }); });
  }

  function standing(state, progress) {
    const about = $("study-about");
    about.replaceChildren(stateWord(state), ` · SLO ${current.slos.join(", ")}`);
    if (progress && !ended.includes(state)) {
      const what = progress.trial === null ? "between trials" : `trial ${progress.trial}, ${progress.stage}`;
      about.append(` · ${what}, ${progress.done} of ${progress.total} done`);
      if (progress.eta !== null) { about.append(` · about ${Math.round(progress.eta)} s left`); }
    }
    const done = ended.includes(state) ? 1 : progress ? progress.done / Math.max(1, progress.total) : 0;
    $("study-progress").value = done;
    for (const button of document.querySelectorAll("[data-ask]")) {
      const from = { pause: ["queued", "planning", "running", "verifying"], resume: ["paused", "failed"],
        cancel: ["queued", "planning", "running", "verifying", "pausing", "paused", "failed"] }[button.dataset.ask];
      button.disabled = !from.includes(state);
    }
    const result = $("study-result");
    const found = current.recommendation;
    result.hidden = !found && !current.error;
    result.textContent = found ? `Trial ${found.trial} is recommended; saving per token ${saving(found)}. ${found.note}` : current.error || "";
    if (found) { result.append(" ", link("Launch command", `/v1/studies/${current.id}/manifest?format=energyopt`)); }
  }

  const columns = [["number", "Trial"], ["tokens_per_joule", "tokens/J"], ["output_rate", "tok/s"],
    ["ttft_p90", "TTFT p90"], ["itl_p99", "ITL p99"], ["tpot_p90", "TPOT p90"]];

  function heads() {
    $("trial-head").replaceChildren(...columns.map(([name, text]) => {
      const head = document.createElement("th"), button = document.createElement("button");
      button.type = "button"; button.textContent = text;
      head.setAttribute("aria-sort", name === sort ? (name === "number" ? "ascending" : "other") : "none");
      button.onclick = () => { sort = name; heads(); attempt(trials); };
      head.append(button);
      return head;
    }), ...["Origin", "Outcome", "Joules", "Setting"].map((text) => {
      const head = document.createElement("th");
      head.textContent = text;
      return head;
    }));
  }

  async function trials() {
    const here = `/v1/studies/${current.id}`, mine = ++asked;
    const [page, front] = await Promise.all([ask(`${here}/trials?limit=500&sort=${sort}`), ask(`${here}/pareto`)]);
    if (mine !== asked) return; // a later request has another order, and may have been answered first
    const best = new Set(front.items.map((one) => one.number));
    $("trial-table").tBodies[0].replaceChildren(...page.items.map((one) => row([
      String(one.number), number(one.tokens_per_joule), number(one.output_rate), milli(one.ttft_p90), milli(one.itl_p99),
      milli(one.tpot_p90), one.origin.replace("_", " "), (one.outcome || one.state).replace("_", " "), one.energy_source || "—",
      Object.entries(one.params).map(([path, value]) => `${path.split(".").pop()} ${value}`).join(", ")],
      best.has(one.number) ? "front" : "")));
    const sources = new Set(page.items.map((one) => one.energy_source).filter(Boolean));
    $("sources").textContent = sources.size ? `Joules are ${[...sources].join(" and ")}.` : "";
    draw(page.items, front);
  }

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(name).trim();
  };

  function draw(all, front) {
    const colour = colours(), x = front.x, y = front.y;
    const known = all.filter((one) => typeof one[x] === "number" && typeof one[y] === "number" && !one.origin.startsWith("verify"));
    $("chart-text").textContent = known.length
      ? `${known.length} trials: ${unit(x)} over ${y.replace("_p90", "").toUpperCase()} p90 in ms; ${front.items.length} of them on the Pareto front.`
      : "No trial has been measured yet.";
    if (chart) { chart.destroy(); chart = null; }
    if (!known.length) { return; }
    const points = [...known].sort((a, b) => a[y] - b[y]);
    const best = new Map(front.items.map((one) => [one.number, one]));
    const data = [points.map((one) => one[y] * 1000), points.map((one) => one[x]), points.map((one) => best.has(one.number) ? one[x] : null)];
    const axis = (label) => ({ label, stroke: colour("--dim"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } });
    chart = new uPlot({
      width: $("chart").clientWidth || 600, height: 300, legend: { show: false }, scales: { x: { time: false } },
      axes: [axis("TPOT p90, ms"), axis(unit(x))],
      series: [{ label: "ms" },
        { label: "trial", stroke: colour("--dim"), paths: () => null, points: { show: true, size: 7, fill: colour("--dim") } },
        { label: "Pareto", stroke: colour("--good"), width: 2, spanGaps: true, points: { show: true, size: 9, fill: colour("--good") } }],
    }, data, $("chart"));
  }

  const history = [[], []];
  async function showDevices() {
    const found = (await ask("/v1/devices")).items;
    $("device-table").hidden = !found.length;
    $("no-devices").hidden = found.length > 0;
    const joules = (one) => one.power === null || one.power === undefined ? "—" : `${number(one.power)} W`;
    $("device-table").tBodies[0].replaceChildren(...found.map((one) => row([
      one.device, joules(one), one.limit ? `${number(one.limit)} W` : "—", one.clock ? `${(one.clock / 1e6).toFixed(0)} MHz` : "—",
      one.throttled && one.throttled.length ? one.throttled.join(", ") : "—", one.temperature ? `${one.temperature} °C` : "—",
      one.lease ? one.lease.user || `process ${one.lease.pid}` : "—"])));
    const known = found.map((one) => one.power).filter((value) => typeof value === "number");
    if (known.length) {
      history[0].push(Date.now() / 1000); history[1].push(known.reduce((a, b) => a + b, 0));
      if (history[0].length > 300) { history[0].shift(); history[1].shift(); }
      const colour = colours();
      const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line") } };
      powerChart ??= new uPlot({ width: $("power-chart").clientWidth || 600, height: 220, axes: [axis, { ...axis, label: "W" }],
        series: [{}, { label: "power, W", stroke: colour("--mark"), width: 2 }] }, history, $("power-chart"));
      powerChart.setData(history);
    }
    timer = setTimeout(() => attempt(showDevices), 2000);
  }

  function form() {
    const slos = $("slos").value.split("\n").map((line) => line.trim()).filter(Boolean);
    return { model: $("model").value.trim(), slos, trials: Number($("trials").value), concurrency: Number($("concurrency").value), quick: $("quick").checked };
  }

  async function submit(dry) {
    $("new-error").textContent = ""; $("plan-result").textContent = "planning …";
    try {
      const made = await ask("/v1/studies" + (dry ? "?dry_run=true" : ""), { method: "POST", body: JSON.stringify(form()) });
      $("plan-result").textContent = "";
      if (!dry) { location.hash = `#/study/${made.id}`; return; }
      const removed = Object.entries(made.removed).map(([rule, count]) => ` ${count} removed: ${rule}.`).join("");
      $("plan-result").textContent = `${made.valid_points} valid configurations, about ${Math.round(made.expected_seconds / 60)} min.${removed} Energy: ${made.energy.join(" ")}`;
    } catch (error) {
      $("plan-result").textContent = ""; $("new-error").textContent = error.message;
    }
  }

  async function attempt(work) {
    try { await work(); say(""); } catch (error) { say(error.message); }
  }

  function route() {
    clearTimeout(timer);
    if (source) { source.close(); source = null; }
    const [, view = "", id = ""] = location.hash.split("/");
    const name = views.includes(view) ? view : "studies";
    for (const one of views) { $(one).hidden = one !== name; }
    if (name === "studies") { attempt(() => showStudies()); }
    if (name === "study") { sort = "number"; attempt(() => showStudy(id)); }
    if (name === "devices") { attempt(showDevices); }
    if (name === "new") { $("model").focus(); }
  }

  if (document.body.dataset.signedIn === "no") {
    $("sign-in").addEventListener("submit", (event) => {
      event.preventDefault();
      attempt(async () => { await ask("/session", { method: "POST", body: JSON.stringify({ key: $("key").value }) }); location.reload(); });
    });
    return;
  }
  $("new-form").addEventListener("submit", (event) => { event.preventDefault(); submit(false); });
  $("plan").addEventListener("click", () => submit(true));
  for (const button of document.querySelectorAll("[data-ask]")) {
    button.addEventListener("click", () => attempt(async () => {
      current = await ask(`/v1/studies/${current.id}:${button.dataset.ask}`, { method: "POST" });
      standing(current.state, current.progress);
    }));
  }
  $("sign-out").addEventListener("click", () => attempt(async () => { await ask("/session", { method: "DELETE" }); location.reload(); }));
  addEventListener("hashchange", route);
  route();
})();

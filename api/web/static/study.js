// One study: where it stands, its trials by any figure, some of them side by side.
import { $, ask, attemptDuring, head, link, listen, milli, number, row, saving, scatter, stateWord, unit, visits } from "./lib.js";

const ended = ["succeeded", "no_feasible", "failed", "cancelled"];
const columns = [["number", "Trial"], ["tokens_per_joule", "tokens/J"], ["output_rate", "tok/s"],
  ["ttft_p90", "TTFT p90"], ["itl_p99", "ITL p99"], ["tpot_p90", "TPOT p90"]];
const rising = ["number", "ttft_p90", "itl_p99", "tpot_p90"]; // by these the smallest come first
const repetitions = ["repeat", "verify_winner", "verify_baseline"]; // no points of the space
const EVERY = 1000; // ms between two looks at the trials, however much happens
let source = null, chart = null, current = null, sort = "number", asked = 0, due = 0, visit = null;
const compared = new Map(), visiting = visits();

export function showStudy(id) {
  const mine = visit = visiting.begin();
  return attemptDuring(mine, async () => {
    const found = await ask(`/v1/studies/${id}`);
    if (mine.over) { return; }
    current = found; sort = "number"; compared.clear(); compare();
    $("study-name").textContent = `${current.name} · ${current.id}`;
    standing(current.state, current.progress);
    heads();
    follow(mine, id);
    await trials(mine);
  });
}

function follow(mine, id) {
  const soon = () => { if (!due) { due = setTimeout(() => { due = 0; attemptDuring(mine, () => trials(mine)); }, EVERY); } };
  const handlers = Object.fromEntries(["trial_finished", "trial_started", "study_finished", "state"].map((kind) => [kind, soon]));
  handlers.standing = (event) => { const now = JSON.parse(event.data); standing(now.state, now.progress); };
  handlers.end = () => {
    source.close();
    attemptDuring(mine, async () => { await renew(mine, ask(`/v1/studies/${id}`)); await trials(mine); });
  };
  source = listen(`/v1/studies/${id}/events`, handlers);
}

async function renew(mine, asking) {
  const found = await asking;
  if (mine.over) { return; }
  current = found;
  standing(current.state, current.progress);
}

export function leaveStudy() {
  visiting.end();
  clearTimeout(due); due = 0;
  if (source) { source.close(); source = null; }
}

export function act(action) {
  const mine = visit;
  return attemptDuring(mine, () => renew(mine, ask(`/v1/studies/${current.id}:${action}`, { method: "POST" })));
}

function standing(state, progress) {
  const about = $("study-about");
  about.replaceChildren(stateWord(state), ` · SLO ${current.slos.join(", ")}`);
  if (progress && !ended.includes(state)) {
    const what = progress.trial === null ? "between trials" : `trial ${progress.trial}, ${progress.stage}`;
    about.append(` · ${what}, ${progress.done} of ${progress.total} done`);
    if (progress.eta !== null) { about.append(` · about ${Math.round(progress.eta)} s left`); }
  }
  $("study-progress").value = ended.includes(state) ? 1 : progress ? progress.done / Math.max(1, progress.total) : 0;
  for (const button of document.querySelectorAll("[data-ask]")) {
    const from = { pause: ["queued", "planning", "running", "verifying"], resume: ["paused", "failed"],
      cancel: ["queued", "planning", "running", "verifying", "pausing", "paused", "failed"] }[button.dataset.ask];
    button.disabled = !from.includes(state);
  }
  const result = $("study-result"), found = current.recommendation;
  result.hidden = !found && !current.error;
  result.textContent = found ? `Trial ${found.trial} is recommended; saving per token ${saving(found)}. ${found.note}` : current.error || "";
  if (found) { result.append(" ", link("Launch command", `/v1/studies/${current.id}/manifest?format=energyopt`)); }
}

function heads() {
  const sortable = columns.map(([name, text]) => {
    const box = head(""), button = document.createElement("button");
    button.type = "button"; button.textContent = text;
    box.setAttribute("aria-sort", name !== sort ? "none" : rising.includes(name) ? "ascending" : "descending");
    button.onclick = () => { sort = name; heads(); const mine = visit; attemptDuring(mine, () => trials(mine)); };
    box.append(button);
    return box;
  });
  $("trial-head").replaceChildren(...sortable, ...["Origin", "Outcome", "Joules", "Setting", "Compare"].map(head));
}

async function trials(visit) {
  const here = `/v1/studies/${current.id}`, mine = ++asked;
  const [page, front] = await Promise.all([ask(`${here}/trials?limit=500&sort=${sort}`), ask(`${here}/pareto`)]);
  if (mine !== asked || visit.over) { return; } // a later request has another order or study, and may be answered first
  const best = new Set(front.items.map((one) => one.number));
  $("trial-table").tBodies[0].replaceChildren(...page.items.map((one) => row([
    String(one.number), number(one.tokens_per_joule), number(one.output_rate), milli(one.ttft_p90), milli(one.itl_p99),
    milli(one.tpot_p90), one.origin.replace("_", " "), (one.outcome || one.state).replace("_", " "), one.energy_source || "—",
    Object.entries(one.params).map(([path, value]) => `${path.split(".").pop()} ${value}`).join(", "), tick(one)],
    best.has(one.number) ? "front" : "")));
  const sources = new Set(page.items.map((one) => one.energy_source).filter(Boolean));
  $("sources").textContent = sources.size ? `Joules are ${[...sources].join(" and ")}.` : "";
  draw(page.items, front, best);
}

function tick(trial) {
  const box = document.createElement("input");
  box.type = "checkbox"; box.checked = compared.has(trial.number);
  box.setAttribute("aria-label", `Compare trial ${trial.number}`);
  box.onchange = () => {
    if (box.checked) { compared.set(trial.number, trial); } else { compared.delete(trial.number); }
    compare();
  };
  return box;
}

// Chosen trials side by side: every figure, and the settings in which they differ.
function compare() {
  const chosen = [...compared.values()];
  $("compare").hidden = chosen.length < 2;
  if (chosen.length < 2) { return; }
  $("compare-head").replaceChildren(head(""), ...chosen.map((one) => head(`Trial ${one.number}`)));
  const figures = columns.slice(1).map(([name, text]) => [text, (one) => rising.includes(name) ? milli(one[name]) : number(one[name])]);
  figures.push(["Joules", (one) => one.energy_source || "—"], ["Outcome", (one) => (one.outcome || one.state).replace("_", " ")]);
  const paths = [...new Set(chosen.flatMap((one) => Object.keys(one.params)))];
  const setting = (one, path) => path in one.params ? String(one.params[path]) : "—";
  const differing = paths.filter((path) => new Set(chosen.map((one) => setting(one, path))).size > 1);
  const settings = differing.map((path) => [path.split(".").pop().replaceAll("_", " "), (one) => setting(one, path)]);
  $("compare-table").tBodies[0].replaceChildren(...[...figures, ...settings].map(([text, of]) => {
    const made = row(chosen.map(of)), name = document.createElement("th");
    name.scope = "row"; name.textContent = text;
    made.prepend(name);
    return made;
  }));
}

function draw(all, front, best) {
  const x = front.x, y = front.y, label = y.replace("_p90", "").toUpperCase();
  const known = all.filter((one) => typeof one[x] === "number" && typeof one[y] === "number" && !repetitions.includes(one.origin));
  $("chart-text").textContent = known.length
    ? `${known.length} trials: ${unit(x)} over ${label} p90 in ms; ${front.items.length} of them on the Pareto front.`
    : "No trial has been measured yet.";
  if (chart) { chart.destroy(); chart = null; }
  if (!known.length) { return; }
  const points = known.map((one) => [one[y] * 1000, one[x]]), good = known.map((one) => best.has(one.number));
  chart = scatter($("chart"), points, good, `${label} p90, ms`, unit(x), true);
}

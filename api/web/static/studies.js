// The list of studies, and the form that makes one.
import { $, ask, attemptDuring, link, number, row, saving, stateWord, unit, visits } from "./lib.js";

const EVERY = 4000, PAGE = 50, MOST = 500;
let timer = 0, shown = PAGE;
const visiting = visits();

export function showStudies() {
  shown = PAGE;
  return refresh(visiting.begin());
}

// As many as are shown, again and again; a failure is told, and does not end it.
async function refresh(visit) {
  clearTimeout(timer);
  await attemptDuring(visit, async () => {
    const page = await ask(`/v1/studies?limit=${Math.min(shown, MOST)}`);
    if (!visit.over) { show(visit, page); }
  });
  if (!visit.over) { timer = setTimeout(() => refresh(visit), EVERY); }
}

function show(visit, page) {
  $("study-table").tBodies[0].replaceChildren(...page.items.map((one) => row([
    link(one.name + " · " + one.id, `#/study/${one.id}`), stateWord(one.state),
    one.progress ? `${one.progress.done} of ${one.progress.total}` : "—",
    one.progress && one.progress.best !== null ? `${number(one.progress.best)} ${unit(one.maximize)}` : "—",
    one.slos.join(", "), saving(one.recommendation)])));
  $("study-table").hidden = page.items.length === 0;
  $("no-studies").hidden = page.items.length !== 0;
  $("more").hidden = !page.next || shown >= MOST;
  $("more").onclick = () => { shown += PAGE; refresh(visit); };
}

export function leaveStudies() { visiting.end(); clearTimeout(timer); }

function form() {
  const slos = $("slos").value.split("\n").map((line) => line.trim()).filter(Boolean);
  return { model: $("model").value.trim(), slos, trials: Number($("trials").value), concurrency: Number($("concurrency").value), quick: $("quick").checked };
}

const most = (plan) => typeof plan.most_joules === "number" ? `at most ${number(plan.most_joules / 3.6e6)} kWh. ` : "";

export async function submit(dry) {
  $("new-error").textContent = ""; $("plan-result").textContent = "planning …";
  try {
    const made = await ask("/v1/studies" + (dry ? "?dry_run=true" : ""), { method: "POST", body: JSON.stringify(form()) });
    $("plan-result").textContent = "";
    if (!dry) { location.hash = `#/study/${made.id}`; return; }
    const removed = Object.entries(made.removed).map(([rule, count]) => ` ${count} removed: ${rule}.`).join("");
    $("plan-result").textContent = `${made.valid_points} valid configurations, about ${Math.round(made.expected_seconds / 60)} min.${removed} Energy: ${most(made)}${made.energy.join(" ")}`;
  } catch (error) {
    $("plan-result").textContent = ""; $("new-error").textContent = error.message;
  }
}

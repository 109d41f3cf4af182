// The list of studies, and the form that makes one.
import { $, ask, attempt, link, number, row, saving, stateWord, unit } from "./lib.js";

let timer = 0;

export async function showStudies(cursor = null) {
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
  if (!cursor) { timer = setTimeout(() => attempt(showStudies), 4000); }
}

export function leaveStudies() { clearTimeout(timer); }

function form() {
  const slos = $("slos").value.split("\n").map((line) => line.trim()).filter(Boolean);
  return { model: $("model").value.trim(), slos, trials: Number($("trials").value), concurrency: Number($("concurrency").value), quick: $("quick").checked };
}

export async function submit(dry) {
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

// Deployments on GPUs that need not exist: everything here is simulated, and says so.
import { $, ask, head, milli, number, row, scatter } from "./lib.js";

let chart = null, asked = 0;

const words = (id) => $(id).value.split(/[\s,]+/).filter(Boolean);

function form() {
  const gpus = words("deploy-gpus"), budget = $("deploy-budget").value;
  return {
    model: $("deploy-model").value.trim(), gpus, devices: Number($("deploy-count").value),
    prompt: Number($("deploy-prompt").value), output: Number($("deploy-output").value), cached: Number($("deploy-cached").value) / 100,
    slos: words("deploy-slos"), power_budget: budget ? Number(budget) * 1000 : null,
  };
}

export async function makePlan() {
  const mine = ++asked; // of two that are simulated at once the later one is shown
  $("deploy-error").textContent = ""; $("deploy-busy").textContent = "simulating …"; $("deploy-result").hidden = true;
  try {
    const found = await ask("/v1/plans", { method: "POST", body: JSON.stringify(form()) });
    if (mine === asked) { show(found); }
  } catch (error) {
    if (mine === asked) { $("deploy-error").textContent = error.message; }
  }
  if (mine === asked) { $("deploy-busy").textContent = ""; }
}

function pool(one) {
  const layout = Object.entries(one.layout).filter(([, size]) => size > 1).map(([name, size]) => `${name} ${size}`).join(" ");
  const limit = one.cap_w ? `, cap ${number(one.cap_w)} W` : one.sm_clock_hz ? `, ${(one.sm_clock_hz / 1e6).toFixed(0)} MHz` : "";
  return `${one.replicas} × ${layout || "one GPU"}, up to ${one.max_num_seqs} requests${limit}`;
}

const pools = (plan) => plan.prefill ? `prefill: ${pool(plan.prefill)}; decode: ${pool(plan.decode)}` : pool(plan.decode);

function show(found) {
  $("deploy-result").hidden = false;
  $("deploy-notice").textContent = found.notice;
  $("deploy-head").replaceChildren(...["GPU", "tokens/J", "tok/s per GPU", "tok/s per user", "TTFT", "TPOT", "Deployment"].map(head));
  $("deploy-table").tBodies[0].replaceChildren(...found.plans.map((one) => {
    const best = one.recommendation, name = `${one.devices} × ${one.gpu}`;
    if (!best) { return row([name, "—", "—", "—", "—", "—", nothing(one)]); }
    return row([name, number(best.tokens_per_joule), number(best.tok_s_gpu), number(best.tok_s_user), milli(best.ttft_s), milli(best.tpot_s), pools(best)]);
  }));
  $("deploy-launch").textContent = found.plans.filter((one) => one.launch.length).map((one) => [`# ${one.gpu}`, ...one.launch].join("\n")).join("\n\n");
  $("deploy-launch").hidden = !$("deploy-launch").textContent;
  $("deploy-doubt").textContent = found.plans.map(doubt).join(" ");
  draw(found.plans);
}

function nothing(one) {
  const near = one.nearest[0];
  if (!near) { return "nothing fits"; }
  const missed = Object.entries(near.violations).map(([slo, by]) => `${slo} by ${(by * 100).toFixed(0)} %`).join(", ");
  return `nothing keeps the SLOs; nearest misses ${missed}`;
}

function doubt(one) {
  const error = one.relative_error === null ? "an error that nobody has measured" : `an error of ±${(one.relative_error * 100).toFixed(0)} %`;
  const facts = one.unverified_facts.length ? `; unverified facts: ${one.unverified_facts.join(", ")}` : "";
  return `${one.gpu}: tokens/J with ${error}${facts}.`;
}

function draw(plans) {
  if (chart) { chart.destroy(); chart = null; }
  const points = [], good = [];
  for (const one of plans) {
    for (const plan of one.front) {
      points.push([plan.tok_s_user, plan.tokens_per_joule]);
      good.push(one.recommendation !== null && plan.tokens_per_joule === one.recommendation.tokens_per_joule);
    }
  }
  $("deploy-chart-text").textContent = points.length ? `${points.length} deployments on the Pareto fronts; the recommended ones are green.` : "";
  if (points.length) { chart = scatter($("deploy-chart"), points, good, "tok/s per user", "tokens/J"); }
}

// Devices of the host of the service: what they draw now, under which limit, and who holds it.
import { $, line, listen, number, row, say } from "./lib.js";

const history = [[], []];
let source = null, chart = null;

export function showDevices() {
  source = listen("/v1/devices/events", { devices: (event) => { say(""); show(JSON.parse(event.data).items); } },
    () => say("The service does not answer; waiting for it."));
}

function show(found) {
  $("device-table").hidden = !found.length;
  $("no-devices").hidden = found.length > 0;
  const watts = (one) => one.power === null || one.power === undefined ? "—" : `${number(one.power)} W`;
  $("device-table").tBodies[0].replaceChildren(...found.map((one) => row([
    one.device, one.scope || "—", watts(one), typeof one.energy === "number" ? `${number(one.energy)} J` : "—", one.source || "—", one.limit ? `${number(one.limit)} W` : "—", one.clock ? `${(one.clock / 1e6).toFixed(0)} MHz` : "—",
    one.throttled && one.throttled.length ? one.throttled.join(", ") : "—", one.temperature ? `${one.temperature} °C` : "—",
    one.lease ? one.lease.user || `process ${one.lease.pid}` : "—"])));
  draw(found.filter((one) => one.scope && !within(one, found)));
}

// What another row of the same device covers already.
const within = (one, found) => ["memory", "module"].includes(one.scope) && found.some((other) => other.device === one.device && other.scope === "gpu");

// The sum of all devices: while one of them says nothing there is none, and the line has a gap.
function draw(found) {
  const known = found.map((one) => one.power).filter((value) => typeof value === "number");
  const whole = known.length > 0 && known.length === found.length;
  const sources = [...new Set(found.map((one) => one.source).filter(Boolean))].join(" and ");
  $("power-text").textContent = whole ? `${number(known.reduce((a, b) => a + b, 0))} W on ${known.length} devices; ${sources || "unknown source"}.`
    : known.length ? `${known.length} of ${found.length} devices say what they draw; there is no sum without the others.` : "";
  if (!known.length && !chart) { return; }
  history[0].push(Date.now() / 1000); history[1].push(whole ? known.reduce((a, b) => a + b, 0) : null);
  if (history[0].length > 300) { history[0].shift(); history[1].shift(); }
  chart ??= line($("power-chart"), history, "power, W");
  chart.setData(history);
}

export function leaveDevices() {
  if (source) { source.close(); source = null; }
}

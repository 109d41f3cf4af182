// Devices of the host of the service: what they draw now, under which limit, and who holds it.
import { $, line, number, row, say } from "./lib.js";

const history = [[], []];
let source = null, chart = null;

export function showDevices() {
  source = new EventSource("/v1/devices/events");
  source.addEventListener("devices", (event) => { say(""); show(JSON.parse(event.data).items); });
  source.addEventListener("error", () => say("The service does not answer; waiting for it."));
}

function show(found) {
  $("device-table").hidden = !found.length;
  $("no-devices").hidden = found.length > 0;
  const watts = (one) => one.power === null || one.power === undefined ? "—" : `${number(one.power)} W`;
  $("device-table").tBodies[0].replaceChildren(...found.map((one) => row([
    one.device, watts(one), one.limit ? `${number(one.limit)} W` : "—", one.clock ? `${(one.clock / 1e6).toFixed(0)} MHz` : "—",
    one.throttled && one.throttled.length ? one.throttled.join(", ") : "—", one.temperature ? `${one.temperature} °C` : "—",
    one.lease ? one.lease.user || `process ${one.lease.pid}` : "—"])));
  const known = found.map((one) => one.power).filter((value) => typeof value === "number");
  if (known.length) {
    history[0].push(Date.now() / 1000); history[1].push(known.reduce((a, b) => a + b, 0));
    if (history[0].length > 300) { history[0].shift(); history[1].shift(); }
    chart ??= line($("power-chart"), history, "power, W");
    chart.setData(history);
  }
}

export function leaveDevices() {
  if (source) { source.close(); source = null; }
}

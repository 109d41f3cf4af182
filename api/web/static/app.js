// The page: views by the part of the address after #, all data from the REST API of the same host.
import { leaveDevices, showDevices } from "./devices.js";
import { $, ask, attempt } from "./lib.js";
import { makePlan } from "./plan.js";
import { leaveStudies, showStudies, submit } from "./studies.js";
import { act, leaveStudy, showStudy } from "./study.js";

const views = {
  studies: showStudies,
  study: showStudy,
  new: () => $("model").focus(),
  plan: () => $("deploy-model").focus(),
  devices: showDevices,
};

function route() {
  leaveStudies(); leaveStudy(); leaveDevices();
  const [, view = "", id = ""] = location.hash.split("/");
  const name = view in views && $(view) ? view : "studies";
  for (const one of Object.keys(views)) { if ($(one)) { $(one).hidden = one !== name; } }
  views[name](id);
}

function signIn() {
  $("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async () => { await ask("/session", { method: "POST", body: JSON.stringify({ key: $("key").value }) }); location.reload(); });
  });
}

function start() {
  for (const [id, work] of [["new-form", () => submit(false)], ["deploy-form", makePlan]]) {
    $(id)?.addEventListener("submit", (event) => { event.preventDefault(); work(); });
  }
  $("dry-run")?.addEventListener("click", () => submit(true));
  for (const button of document.querySelectorAll("[data-ask]")) {
    button.addEventListener("click", () => act(button.dataset.ask));
  }
  $("sign-out").addEventListener("click", () => attempt(async () => { await ask("/session", { method: "DELETE" }); location.reload(); }));
  addEventListener("hashchange", route);
  route();
}

if (document.body.dataset.signedIn === "no") { signIn(); } else { start(); }

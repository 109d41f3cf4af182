"""The page in a real browser: what people click, that charts are drawn, and that nothing leaves the host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python import sync_playwright as axe

from api.jobs.services import JobServices
from api.web.page import FILES, VENDORED
from energyopt.compose.study import PlannedStudy
from energyopt.core.jobs import Scope
from energyopt.core.study import StudyState
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore
from tuner.fake_study import toy_spec

STATIC = Path(__file__).parents[3] / "api" / "web" / "static"
FIRST_FIGURE = "parseFloat(document.querySelector('#trial-table tbody tr td:nth-child(2)').innerText)"
COLOURED = """() => [...document.querySelectorAll('#chart canvas')].map(canvas => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let at = 0; at < data.length; at += 4) { if (data[at + 3] && data[at + 1] > data[at] + 30) count++; }
  return count;
}).reduce((a, b) => a + b, 0)"""


def until(page: Any, condition: str) -> None:
    """Asks from outside: a page that forbids ``eval`` cannot watch a condition by itself."""
    for _ in range(300):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def test_vendored_files_are_those_of_their_package() -> None:
    for name, digest in VENDORED.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in (STATIC / "uplot.LICENSE.txt").read_text()
    assert {path.name for path in STATIC.iterdir()} == set(FILES)


async def test_the_shell_loads_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    reply = await http.get("/")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "https://" not in reply.text
    for name in FILES:
        file = await http.get(f"/static/{name}")
        assert file.status_code == 200
        cached = await http.get(f"/static/{name}", headers={"if-none-match": file.headers["etag"]})
        assert cached.status_code == 304
    for wrong in ("x", "..%2fpage.py", "page.html.jinja"):
        assert (await http.get(f"/static/{wrong}")).status_code == 404


async def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(
    http: httpx.AsyncClient, key_for: Callable[..., dict[str, str]]
) -> None:
    key = key_for(Scope.READ)["authorization"].split()[1]
    assert 'id="sign-in"' in (await http.get("/")).text
    assert (await http.post("/session", json={"key": "eo_no"})).status_code == 401
    assert (await http.post("/session", json={"key": key}, headers={"origin": "https://x"})).status_code == 403
    signed = await http.post("/session", json={"key": key})
    cookie = signed.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert (await http.get("/v1/studies")).status_code == 200
    assert 'id="study-table"' in (await http.get("/")).text
    await http.delete("/session")
    assert (await http.get("/v1/studies")).status_code == 401


@dataclass
class Browser:
    """A page of Chromium; ``errors`` are those of its scripts, ``foreign`` the requests that left the host."""

    page: Any
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


@pytest.fixture
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium: install the package chromium")
        pytest.skip("no Chromium: install the package chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with sync_api.sync_playwright() as play:
        running = play.chromium.launch(executable_path=chromium, headless=True, args=flags)
        found = Browser(running.new_page(viewport={"width": 1100, "height": 800}))
        found.page.set_default_timeout(20_000)
        found.page.on("pageerror", lambda error: found.errors.append(str(error)))
        found.page.on("console", lambda line: found.errors.append(line.text) if line.type == "error" else None)
        found.page.on(
            "request",
            lambda asked: found.foreign.append(asked.url) if not asked.url.startswith("http://127.0.0.1:") else None,
        )
        yield found
        running.close()


class ToyPlanner:
    """Plans the toy study whatever is asked, except for a model that does not exist."""

    def __init__(self, real: Any) -> None:
        self.form, self.deployment, self.plan_spec = real.form, real.deployment, real.plan_spec

    def plan(self, request: Any) -> PlannedStudy:
        from energyopt.core.errors import ConfigError

        if request.model != "toy":
            raise ConfigError(f"There is no model {request.model!r}.")
        spec = toy_spec(trials=request.trials, slos=request.slos)
        return PlannedStudy(spec, {}, 14, {"too large": 4}, Seconds(120.0), ("estimated",))


def shot(browser: Browser, name: str) -> None:
    """A picture for a person to look at, where one is asked for."""
    folder = os.environ.get("ENERGYOPT_SCREENSHOTS")
    if folder:
        browser.page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def accessible(page: Any) -> None:
    """No serious or critical finding of axe-core on what is shown."""
    found = axe.Axe().run(page).response["violations"]
    bad = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
    assert bad == []


def test_what_people_click(
    services: JobServices,
    store: ServiceStore,
    run_toy: Callable[[str], None],
    serve_jobs: Callable[[JobServices], str],
    browser: Browser,
    tmp_path: Path,
) -> None:
    local = replace(services, hosts=frozenset(("127.0.0.1",)), planner=ToyPlanner(services.planner))
    url, page = serve_jobs(local), browser.page
    page.goto(url)
    page.get_by_text("No studies yet").wait_for()
    shot(browser, "empty")

    page.get_by_role("link", name="New study").click()
    page.locator("#model").fill("none")
    page.get_by_role("button", name="Plan only").click()
    page.get_by_text("There is no model 'none'").wait_for()
    assert browser.errors, "the browser's console tells of the refused request"
    browser.errors.clear()
    page.locator("#model").fill("toy")
    page.locator("#slos").fill("ttft:p90<1500ms\nitl:p99<80ms")
    page.get_by_label("Configurations to try").fill("8")
    page.get_by_role("button", name="Plan only").click()
    page.get_by_text("14 valid configurations, about 2 min").wait_for()
    accessible(page)
    shot(browser, "form")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("No trial has been measured yet").wait_for()
    study = store.studies.studies()[0].id

    worker = threading.Thread(target=run_toy, args=(study,))
    worker.start()
    page.get_by_text("is recommended").wait_for()
    worker.join()
    until(page, "document.querySelectorAll('#trial-table tbody tr').length > 5")
    assert page.evaluate(COLOURED) > 50, "the front is drawn in green"
    page.get_by_role("button", name="tokens/J").click()
    until(page, "document.querySelector('#trial-head th:nth-child(2)').ariaSort === 'descending'")
    trials = httpx.get(f"{url}/v1/studies/{study}/trials?sort=tokens_per_joule", trust_env=False).json()["items"]
    best = trials[0]["tokens_per_joule"]
    until(page, f"Math.abs({FIRST_FIGURE} - {best}) < 0.01 * {best}")  # sorted rows come from the service
    page.get_by_label("Compare trial 0", exact=True).check()
    page.get_by_label("Compare trial 1", exact=True).check()
    page.get_by_role("heading", name="Side by side").wait_for()
    assert page.locator("#compare-table tbody th").all_inner_texts()[:2] == ["tokens/J", "tok/s"]
    assert page.locator("#compare-table tbody tr").count() > 7, "figures, and the settings that differ"
    accessible(page)
    shot(browser, "study")

    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    page.reload()
    page.get_by_text("is recommended").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out on a phone"
    shot(browser, "phone-dark")
    accessible(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.get_by_role("link", name="Studies").click()
    page.get_by_role("link", name=study).wait_for()
    shot(browser, "studies-phone")
    page.get_by_role("link", name="Devices").click()
    page.get_by_text("No device of this host can be measured").wait_for()
    accessible(page)
    assert (browser.errors, browser.foreign) == ([], [])


def test_what_comes_late_or_is_refused_does_no_harm(
    services: JobServices, store: ServiceStore, serve_jobs: Callable[[JobServices], str], browser: Browser
) -> None:
    """An answer for a page that was left, a stream that was refused, and devices of which one says nothing."""
    slow, quick = (store.jobs.submit(toy_spec(name=name), {}, labels={})[0] for name in ("slow", "quick"))
    url, page = serve_jobs(replace(services, hosts=frozenset(("127.0.0.1",)))), browser.page
    held: list[Any] = []
    page.route(f"**/v1/studies/{slow}", lambda route: held.append(route))
    page.goto(f"{url}/#/study/{slow}")
    while not held:
        page.wait_for_timeout(20)
    streams: list[str] = []

    def refuse_first(route: Any) -> None:
        streams.append(route.request.url)
        if len(streams) == 1:
            route.fulfill(status=503, body="busy")
        else:
            route.continue_()

    page.route("**/events", refuse_first)
    page.goto(f"{url}/#/study/{quick}")
    page.get_by_role("heading", name=f"quick · {quick}").wait_for()
    with page.expect_response(f"**/v1/studies/{slow}"):
        held[0].continue_()
    page.wait_for_timeout(100)
    assert page.locator("#study-name").inner_text() == f"quick · {quick}"
    for _ in range(200):
        if len(streams) > 1:
            break
        page.wait_for_timeout(50)
    assert [stream.split("/")[-2] for stream in streams] == [quick] * 2, "opened again, and none for the study left"
    store.studies.change_state(quick, StudyState.CANCELLED, when=[StudyState.QUEUED])
    page.locator(".state-cancelled").wait_for()

    items = [
        {"device": "GPU-1", "scope": "gpu", "power": 301.5, "energy": 12.0, "source": "counter"},
        {"device": "GPU-1", "scope": "memory", "power": 60.0, "energy": 2.0, "source": "counter"},
        {"device": "GPU-2", "scope": "gpu", "power": None, "energy": None, "source": None},
    ]
    frame = f"event: devices\ndata: {json.dumps({'items': items})}\n\n"
    page.route("**/v1/devices/events", lambda route: route.fulfill(body=frame, content_type="text/event-stream"))
    page.goto(f"{url}/#/devices")
    page.get_by_text("1 of 2 devices say what they draw").wait_for()
    assert "counter" in page.locator("#device-table tbody tr").first.inner_text()
    items[2] = {"device": "GPU-2", "scope": "gpu", "power": 98.5, "energy": 1.0, "source": "integrated"}
    whole = f"event: devices\ndata: {json.dumps({'items': items})}\n\n"
    page.unroute("**/v1/devices/events")
    page.route("**/v1/devices/events", lambda route: route.fulfill(body=whole, content_type="text/event-stream"))
    page.get_by_text("400 W on 2 devices; counter and integrated").wait_for()
    assert browser.foreign == []


def test_a_study_is_paused_and_cancelled_by_hand(
    services: JobServices, store: ServiceStore, serve_jobs: Callable[[JobServices], str], browser: Browser
) -> None:
    study = store.jobs.submit(toy_spec(), {}, labels={})[0]
    url = serve_jobs(replace(services, hosts=frozenset(("127.0.0.1",))))
    browser.page.goto(f"{url}/#/study/{study}")
    browser.page.get_by_role("button", name="Pause").click()
    browser.page.locator(".state-paused").wait_for()
    browser.page.get_by_role("button", name="Resume").click()
    browser.page.locator(".state-queued").wait_for()
    browser.page.get_by_role("button", name="Cancel").click()
    browser.page.locator(".state-cancelled").wait_for()
    assert store.studies.study(study).state is StudyState.CANCELLED
    assert (browser.errors, browser.foreign) == ([], [])


def test_a_deployment_is_planned_and_a_key_signs_in_and_out(
    services: JobServices,
    serve_jobs: Callable[[JobServices], str],
    browser: Browser,
    key_for: Callable[..., dict[str, str]],
) -> None:
    key, page = key_for(Scope.TUNE)["authorization"].split()[1], browser.page
    page.goto(serve_jobs(replace(services, hosts=frozenset(("127.0.0.1",)))))
    page.get_by_label("API key").fill(key)
    accessible(page)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Plan", exact=True).click()
    page.locator("#deploy-model").fill("llama-3.1-8b")
    page.get_by_label("GPU types").fill("nonesuch")
    page.get_by_role("button", name="Simulate").click()
    page.locator("#deploy-error").get_by_text("nonesuch").wait_for()
    browser.errors.clear()
    page.get_by_label("GPU types").fill("h100, h200")
    page.get_by_label("GPUs of each type, at most").fill("1")
    page.get_by_role("button", name="Simulate").click()
    page.locator("#deploy-table tbody tr").nth(1).wait_for(timeout=120_000)
    assert "simulated" in page.locator("#deploy-notice").inner_text()
    assert "vllm serve" in page.locator("#deploy-launch").inner_text()
    accessible(page)
    shot(browser, "plan")
    page.locator("#deploy-slos").fill("tpot:p90<10us")
    page.get_by_role("button", name="Simulate").click()
    page.get_by_text("nothing keeps the SLOs").first.wait_for(timeout=120_000)
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").wait_for()
    assert (browser.errors, browser.foreign) == ([], [])

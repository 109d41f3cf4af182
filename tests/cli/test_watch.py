"""The watch screen in a terminal of any size: what it shows, what it says when nothing answers, and how it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from textual.widgets import DataTable, Sparkline, Static

from energyopt.cli import watch as watch_verb
from energyopt.cli.watch_screen import WatchApp
from energyopt.cli.watch_table import COLUMNS, columns
from energyopt.compose.watch import LocalPages, RemotePages, metrics_url
from energyopt.core.clock import Clock, FakeClock
from energyopt.core.errors import ConfigError, SensorError
from energyopt.core.results import Scope
from energyopt.core.units import Seconds
from telemetry.fake import FakeSource
from telemetry.meter import Meter
from telemetry.page import Page, parse_page
from telemetry.ports import SensorId
from telemetry.watch import baseline, view

GPU = "GPU-8f1c2a44-77aa-4c02-9d1e-0123456789ab"
DEVICES = (GPU, "GPU-second")


def page_text(at: float, *, begun: float = 1000.0, devices: tuple[str, ...] = DEVICES) -> str:
    """What an agent or server says ``at`` seconds after its start, as the catalogue names it."""
    lines, watts = [], 600.0

    def say(name: str, value: float, **labels: str) -> None:
        words = ",".join(f'{label}="{word}"' for label, word in labels.items())
        lines.append(f"energyopt_{name}{{{words}}} {value}")

    for number, device in enumerate(devices):
        sensor = {"gpu_uuid": device, "scope": "gpu"}
        say("gpu_energy_joules_total", begun + watts * at, **sensor, source="counter")
        say("gpu_power_watts", watts + 1, **sensor, kind="average")
        say("gpu_power_watts", watts, **sensor, kind="instant")
        say("gpu_up", 1, **sensor)
        say("gpu_sample_age_seconds", 0.05, **sensor)
        say("gpu_info", 1, gpu_uuid=device, gpu=str(number), vendor="nvidia", model="H200", pci_bus_id="", driver="")
        say("gpu_power_limit_watts", 700, gpu_uuid=device, kind="requested")
        say("gpu_power_limit_watts", 610, gpu_uuid=device, kind="enforced")
        say("gpu_clock_hertz", 1.755e9, gpu_uuid=device, domain="sm")
        say("gpu_throttled", number, gpu_uuid=device, reason="power_cap")
        say("gpu_throttled", 0, gpu_uuid=device, reason="thermal_sw")
        say("gpu_temperature_celsius", 61, gpu_uuid=device, sensor="gpu")
        say("gpu_utilization_ratio", 0.93, gpu_uuid=device, unit="compute")
    say("tokens_total", 500 + 3000 * at, model="m", kind="output")
    say("tokens_total", 9e9, model="m", kind="prompt")
    return "\n".join(lines) + "\n"


class ScriptedPages:
    """Gives its pages in turn, the last for ever; an exception is raised instead."""

    name = "http://node-7:9400/metrics"
    notes: tuple[str, ...] = ("a note about what is measured",)

    def __init__(self, *script: Page | SensorError) -> None:
        self._script = list(script)
        self.closed = threading.Event()

    def read(self) -> Page:
        found = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(found, SensorError):
            raise found
        return found

    def close(self) -> None:
        self.closed.set()


def page(at: float, begun: float = 1000.0) -> Page:
    return parse_page(page_text(at, begun=begun), Seconds(at))


def cells(app: WatchApp) -> list[list[str]]:
    table = app.query_one("#devices", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def titles(app: WatchApp) -> list[str]:
    return [str(column.label) for column in app.query_one("#devices", DataTable).columns.values()]


def words(app: WatchApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


async def looked(app: WatchApp, pilot: object, times: int) -> None:
    """Let the app look again, as its timer would."""
    for _ in range(times):
        app._look()
        await app.workers.wait_for_complete()
        await pilot.pause()  # type: ignore[attr-defined]


async def test_shows_every_device_and_their_sums() -> None:
    app = WatchApp(ScriptedPages(page(0), page(10)), 60.0)
    async with app.run_test(size=(140, 30)) as pilot:
        await app.workers.wait_for_complete()
        await looked(app, pilot, 1)
        assert titles(app) == [column.title for column in COLUMNS]
        first, second = cells(app)
        figures = ["600 W", "610 W", "1.755 GHz", "no", "6 kJ", "93%", "61", "gpu", "counter", "H200"]
        assert first == ["GPU-8f1c2a44-…", *figures]
        assert second[4] == "power cap"
        sums = words(app, "sums")
        for part in ("power 1.2 kW", "energy 12 kJ", "output 3,000 tok/s", "efficiency 2.5 tokens/J"):
            assert part in sums
        assert app.query_one("#power", Sparkline).data == [1200.0, 1200.0]
        assert "1.2 kW to 1.2 kW over 2 min" in words(app, "range")
        assert "node-7" in words(app, "title")
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize("width", [24, 80, 110])
async def test_a_narrow_terminal_keeps_what_matters(width: int) -> None:
    app = WatchApp(ScriptedPages(page(0), page(10)), 60.0)
    async with app.run_test(size=(200, 30)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.resize_terminal(width, 12)
        await pilot.pause()
        assert titles(app) == [column.title for column in columns(width)]
        assert {"device", "power", "energy"} <= set(titles(app))
        assert not app.query_one("#power", Sparkline).display


async def test_what_is_not_told_is_a_dash() -> None:
    text = f'energyopt_gpu_energy_joules_total{{gpu_uuid="{GPU}",scope="gpu",source="counter"}} '
    pages = [parse_page(f"{text}{1000 + at}\n", Seconds(at)) for at in (0.0, 10.0)]
    app = WatchApp(ScriptedPages(*pages), 60.0)
    async with app.run_test(size=(140, 30)) as pilot:
        await app.workers.wait_for_complete()
        await looked(app, pilot, 1)
        assert cells(app) == [["GPU-8f1c2a44-…", "1 W", "—", "—", "—", "10 J", "—", "—", "gpu", "counter", "—"]]
        assert "efficiency —" in words(app, "sums")


def test_a_sensor_that_has_settled_nothing_has_neither_energy_nor_source() -> None:
    seen = [parse_page(f'energyopt_gpu_up{{gpu_uuid="{GPU}",scope="gpu"}} 1\n', Seconds(at)) for at in (0.0, 1.0)]
    (device,) = view(seen[0], seen[0], seen[1]).devices
    assert (device.up, device.power, device.energy, device.source) == (True, None, None, None)


async def test_a_page_that_does_not_come_is_said_and_the_old_one_stays() -> None:
    app = WatchApp(ScriptedPages(page(0), SensorError("http://node-7 does not answer: refused."), page(20)), 60.0)
    async with app.run_test(size=(140, 30)) as pilot:
        await app.workers.wait_for_complete()
        await looked(app, pilot, 1)
        assert "does not answer: refused" in words(app, "notes")
        assert len(cells(app)) == 2
        await looked(app, pilot, 1)
        assert "does not answer" not in words(app, "notes")
        assert "energy 24 kJ" in words(app, "sums")


async def test_a_machine_without_sensors_says_so() -> None:
    app = WatchApp(ScriptedPages(parse_page("", Seconds(0.0))), 60.0)
    async with app.run_test(size=(100, 24)):
        await app.workers.wait_for_complete()
        assert "No sensor is read here." in words(app, "notes")
        assert cells(app) == []


async def test_keys() -> None:
    app = WatchApp(ScriptedPages(page(0), page(10), page(20), page(30)), 60.0)
    async with app.run_test(size=(140, 30)) as pilot:
        await app.workers.wait_for_complete()
        await looked(app, pilot, 1)
        await pilot.press("r")
        await looked(app, pilot, 1)
        assert "energy 12 kJ" in words(app, "sums")  # since the key, not since the start
        await pilot.press("p")
        await looked(app, pilot, 1)
        assert "paused" in words(app, "notes")
        assert "energy 12 kJ" in words(app, "sums")
        await pilot.press("ctrl+c")
    assert app.return_code == 0


def test_a_process_that_began_anew_counts_from_there() -> None:
    first, later, anew = page(0), page(100), page(1, begun=500)
    base = baseline(baseline(first, first, later), later, anew)
    shown = view(base, later, anew)
    assert shown.energy == 0.0  # counted from the new beginning
    assert shown.tokens_per_joule is None
    assert view(baseline(base, anew, page(3, 500)), anew, page(3, 500)).energy == pytest.approx(2400.0)


def test_a_device_that_appears_later_counts_from_then() -> None:
    one = parse_page(page_text(0, devices=(GPU,)), Seconds(0))
    base = baseline(one, one, page(10))
    assert [device.energy for device in view(base, one, page(20)).devices] == [12_000.0, 6_000.0]


def test_power_is_a_rate_where_no_gauge_tells_it() -> None:
    def only_energy(at: float) -> Page:
        kept = [line for line in page_text(at).splitlines() if "power_watts" not in line]
        return parse_page("\n".join(kept) + "\n", Seconds(at))

    shown = view(only_energy(0), only_energy(0), only_energy(10))
    assert [device.power for device in shown.devices] == [600.0, 600.0]


@pytest.mark.parametrize("text", ["<html></html>", "a{b=c} 1\n", "power watts x\n", 'm{x="y" 1\n'])
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(SensorError, match="no page of metrics"):
        parse_page(text, Seconds(0))


def test_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telemetry.page.MAX_SAMPLES", 100)
    with pytest.raises(SensorError, match="more than"):
        parse_page("m 1\n" * 101, Seconds(0))


class TestPages:
    def test_over_http(self) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            assert str(request.url) == "http://node:9400/metrics"
            return httpx.Response(200, text=page_text(5))

        pages = RemotePages("node:9400", FakeClock(7.0), httpx.MockTransport(answer))
        found = pages.read()
        assert found.at == 7.0
        assert len(view(found, found, found).devices) == 2
        pages.close()

    @pytest.mark.parametrize("status", [404, 500])
    def test_an_answer_that_is_none(self, status: int) -> None:
        pages = RemotePages("http://node", FakeClock(), httpx.MockTransport(lambda request: httpx.Response(status)))
        with pytest.raises(SensorError, match=f"answered {status}"):
            pages.read()

    def test_nobody_there(self) -> None:
        with pytest.raises(SensorError, match="does not answer"):
            RemotePages("127.0.0.1:1").read()

    def test_a_page_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("energyopt.compose.watch.MAX_BYTES", 10_000)

        def endless() -> Iterator[bytes]:
            while True:
                yield b"m 1\n" * 1000

        pages = RemotePages(
            "x", FakeClock(), httpx.MockTransport(lambda request: httpx.Response(200, content=endless()))
        )
        with pytest.raises(SensorError, match="longer than"):
            pages.read()

    @pytest.mark.parametrize(
        ("given", "url"),
        [
            ("node:9400", "http://node:9400/metrics"),
            ("https://node/", "https://node/metrics"),
            ("http://node:8000/own/path", "http://node:8000/own/path"),
        ],
    )
    def test_addresses(self, given: str, url: str) -> None:
        assert str(metrics_url(given)) == url

    @pytest.mark.parametrize("given", ["ftp://node", "http://", "file:///etc/passwd", "node:port", ""])
    def test_what_is_no_address(self, given: str) -> None:
        with pytest.raises(ConfigError, match="is no address"):
            metrics_url(given)

    def test_of_this_machine(self) -> None:
        def opened(kind: str, clock: Clock) -> Meter:
            sources = [FakeSource(clock), FakeSource(clock, sensor=SensorId("cpu:0", Scope.CPU_PACKAGE))]
            return Meter(sources, clock, ("found",))

        with LocalPages(open_meter=opened) as pages:
            found = pages.read()
            assert pages.notes == ("found",)
        shown = view(found, found, found)
        assert [(device.name, device.power, device.up) for device in shown.devices] == [
            ("GPU-fake", 300.0, True),
            ("cpu:0", 300.0, True),
        ]


def test_every_family_that_is_watched_is_one_that_is_published() -> None:
    """The page above is written by hand; this keeps its names those of the catalogue."""
    from telemetry.catalog import CATALOG

    known = {metric.name: set(metric.labels) for metric in CATALOG}
    for name, samples in page(0).samples.items():
        for labels, _ in samples:
            assert known[name] == set(labels), name
    assert generate_latest(CollectorRegistry()) == b""


def test_without_a_terminal_it_asks_for_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = ScriptedPages(page(0), page(10))
    monkeypatch.setattr(watch_verb, "RemotePages", lambda address: pages)
    with pytest.raises(ConfigError, match=r"ask for --json"):
        watch_verb.watch("node:9401", every=0.2)
    assert pages.closed.is_set()
    watch_verb.watch("node:9401", every=0.2, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == pages.name
    assert [device["power"] for device in document["devices"]] == [600.0, 600.0]
    assert document["tokens_per_joule"] == pytest.approx(2.5)

"""``serve`` under fixed limits and under the governor: wiring, refusals, and a real service in one piece."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from api.serve import Server
from energyopt.compose import service
from energyopt.compose.governed import PowerControl, WatchedEngine, choose_actuator, fixed_power, governed_power
from energyopt.compose.service import ServeRequest, run_service
from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import EngineConfig, PowerConfig
from energyopt.core.errors import ConfigError, ControlError, OverloadedError
from energyopt.core.slo import Slo
from energyopt.core.units import Hertz, Seconds, Watts
from engine.output import Output
from engine.ports import ServingEngine
from engine.request import SamplingParams
from telemetry.control.access import Access
from telemetry.control.client import Connection
from telemetry.control.fake import FakeChannel, FakeLimits
from telemetry.control.helper import PowerHelper
from telemetry.control.journal import Journal
from telemetry.control.leased import LeasedPower
from telemetry.control.limits import Limiter
from telemetry.control.ports import DeviceLimits
from telemetry.control.window import LatencyWindow

TTFT = Slo.parse("ttft:p90<500ms")
LIMITS = DeviceLimits(Watts(500.0), Watts(500.0), Watts(200.0), Watts(700.0), Hertz(2e9))
FAKE = LeasedPower(("GPU-1",), FakeChannel)


class TestActuator:
    def test_is_the_clock_where_every_device_states_one(self) -> None:
        slower = DeviceLimits(Watts(500.0), Watts(500.0), Watts(200.0), Watts(700.0), Hertz(1.5e9))
        found = choose_actuator((LIMITS, slower), PowerConfig())
        assert (found.kind, found.floor, found.top) == ("sm_clock", 0.75e9, 1.5e9)
        assert choose_actuator((LIMITS,), PowerConfig(sm_clock=Hertz(1.2e9))).top == 1.2e9

    def test_is_else_the_cap_and_never_above_what_was_found(self) -> None:
        silent = DeviceLimits(Watts(450.0), Watts(450.0), Watts(250.0), Watts(700.0))
        found = choose_actuator((LIMITS, silent), PowerConfig())
        assert (found.kind, found.floor, found.top) == ("cap", 250.0, 450.0)

    def test_says_why_there_is_none(self) -> None:
        fixed = DeviceLimits(Watts(300.0), Watts(300.0), Watts(300.0), Watts(300.0))
        with pytest.raises(ControlError, match="no room"):
            choose_actuator((fixed,), PowerConfig())
        with pytest.raises(ControlError, match="not every device"):
            choose_actuator((fixed,), PowerConfig(sm_clock=Hertz(1e9)))


def test_nothing_asked_holds_nothing() -> None:
    told: list[str] = []
    with fixed_power(FAKE, PowerConfig(), told.append) as control:
        assert control == PowerControl(None, None)
        assert control.collector is None
    assert told == []


def test_the_governor_says_what_it_will_do() -> None:
    told: list[str] = []
    with governed_power(FAKE, (LIMITS,), PowerConfig(), (TTFT,), told.append) as control:
        assert control.lease is not None
        assert control.lease.power.sm_clock == 2e9
    assert told == ["power: the governor moves the SM clock between 1000 MHz and 2000 MHz while ttft:p90<500ms hold"]


class Scripted:
    """An engine of which one method matters here."""

    def __init__(self, outputs: Sequence[Output | Exception]) -> None:
        self._outputs = outputs
        self.closed = False

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, request_id: str, session: str | None = None
    ) -> AsyncIterator[Output]:
        try:
            for output in self._outputs:
                if isinstance(output, Exception):
                    raise output
                yield output
        finally:
            self.closed = True


def watched(engine: Scripted) -> tuple[WatchedEngine, LatencyWindow, FakeClock]:
    clock, window = FakeClock(), LatencyWindow((TTFT,), Seconds(10.0))
    return WatchedEngine(cast(ServingEngine, engine), window, clock), window, clock


def test_first_tokens_are_told_as_they_come_and_outputs_pass_unchanged() -> None:
    outputs = [Output("r", "", ()), Output("r", "a", (1,)), Output("r", "b", (2,))]
    engine, window, clock = watched(Scripted(outputs))

    async def use() -> list[Output]:
        got = []
        async for output in engine.generate((1,), SamplingParams(), request_id="r"):
            clock.advance(0.1)
            got.append(output)
        return got

    assert asyncio.run(use()) == outputs
    (measure,) = window.measures(clock.now())
    assert measure.estimate == pytest.approx(0.1)
    assert measure.samples == 1


def test_a_refused_request_is_a_latency_without_end_and_one_that_leaves_is_none() -> None:
    engine, window, clock = watched(Scripted([OverloadedError("full", retry_after=1.0)]))

    async def refused() -> None:
        async for _ in engine.generate((1,), SamplingParams(), request_id="r"):
            pass

    with pytest.raises(OverloadedError):
        asyncio.run(refused())
    assert window.measures(clock.now())[0].estimate == float("inf")

    inner = Scripted([Output("s", "", ()), Output("s", "a", (1,))])
    engine, window, clock = watched(inner)

    async def left() -> None:
        stream = engine.generate((1,), SamplingParams(), request_id="s")
        async with aclosing(cast(Any, stream)):
            await anext(stream)

    asyncio.run(left())
    assert inner.closed, "leaving early ends the engine's stream too"
    assert window.measures(clock.now())[0].samples == 0
    assert window.oldest(clock.now()) == 0.0


class Machine:
    """A helper in a thread over a driver in memory, in the place of the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.driver = FakeLimits(("GPU-1",))
        limiter = Limiter(self.driver, Journal(tmp_path / "journal"))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(tmp_path / "power.sock"))
        self.listener.listen(4)
        self.helper = PowerHelper(limiter, Access, MonotonicClock())
        self.thread = threading.Thread(target=self.helper.serve, kwargs={"listener": self.listener})
        self.thread.start()
        leased = LeasedPower(("GPU-1",), lambda: Connection.to(tmp_path / "power.sock"))
        monkeypatch.setattr(service, "device_identities", lambda kind, ranks: ("GPU-1",))
        monkeypatch.setattr(service, "power_controller", lambda devices: leased)
        monkeypatch.setattr(service, "capable_limits", lambda devices: [self.driver.limits("GPU-1")])
        monkeypatch.setattr(service, "put_back_left", tuple)

    def close(self) -> None:
        self.helper.stop()
        self.thread.join(10.0)
        self.listener.close()


@pytest.fixture
def request_of(tiny_model: Path) -> Any:
    def build(**settings: object) -> ServeRequest:
        engine = EngineConfig(model=str(tiny_model), device="cpu", threads=1)
        return ServeRequest(engine=engine, port=0, meter="none", **cast(Any, settings))

    return build


def test_a_service_under_the_governor_tells_its_decisions_and_leaves_everything_as_found(
    request_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine, told, seen = Machine(monkeypatch, tmp_path), list[str](), dict[str, Any]()

    def use(address: str) -> None:
        body = {"model": "m", "prompt": "hello", "max_tokens": 16, "ignore_eos": True}
        with httpx.Client(base_url=address, timeout=60.0) as client:
            body["model"] = client.get("/v1/models").json()["data"][0]["id"]
            end = time.monotonic() + 60.0
            while time.monotonic() < end and seen.get("clock", 1.98e9) >= 1.98e9:
                client.post("/v1/completions", json=body).raise_for_status()
                seen["clock"] = machine.driver.devices["GPU-1"].clock
            seen["page"] = client.get("/metrics", headers={"accept": "text/plain"}).text

    run_and_use(request_of(power_auto=True, slos=("ttft:p90<30s", "itl:p99<30s")), told, use, monkeypatch)
    machine.close()
    assert any(line.startswith("governor: 1980 MHz to ") and "room" in line for line in told), told
    assert 0.99e9 <= seen["clock"] < 1.98e9
    assert 'energyopt_gpu_sm_clock_ceiling_hertz{gpu_uuid="GPU-1"}' in seen["page"]
    assert 'energyopt_governor_decisions_total{reason="room"}' in seen["page"]
    assert machine.driver.devices["GPU-1"].clock is None


def test_a_service_under_a_fixed_cap(request_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, seen = Machine(monkeypatch, tmp_path), dict[str, Any]()

    def use(address: str) -> None:
        seen["cap"] = machine.driver.devices["GPU-1"].requested
        seen["page"] = httpx.get(f"{address}/metrics", timeout=30.0).text

    told: list[str] = []
    run_and_use(request_of(power=PowerConfig(cap=Watts(250.0))), told, use, monkeypatch)
    machine.close()
    assert seen["cap"] == 250.0
    assert told[0] == "power: GPU-1 held at 250 W; what was found comes back at the end"
    assert 'energyopt_gpu_power_cap_watts{gpu_uuid="GPU-1"} 250' in seen["page"]
    assert machine.driver.devices["GPU-1"].requested == 500.0


def test_an_objective_that_nothing_would_heed_is_refused(request_of: Any) -> None:
    with pytest.raises(ConfigError, match="--power-cap auto keeps"):
        run_service(request_of(slos=("ttft:p90<1s",)), lambda line: None)
    with pytest.raises(ConfigError, match="needs at least one --slo"):
        run_service(request_of(power_auto=True), lambda line: None)
    with pytest.raises(ControlError, match="caps work on GPUs"):
        run_service(request_of(power_auto=True, slos=("ttft:p90<1s",)), lambda line: None)


def run_and_use(
    request: ServeRequest, told: list[str], use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve in another thread, use it from this one, and end it as a signal would."""
    servers: list[Server] = []
    address: list[str] = []
    ready, failures = threading.Event(), list[BaseException]()

    def serving(app: Any, listener: socket.socket, **how: Any) -> None:
        servers.append(Server(app, grace=Seconds(5.0), **how))
        servers[0].run(sockets=[listener])

    def hear(line: str) -> None:
        told.append(line)
        if line.startswith("serving on "):
            address.append(line.split()[2].removesuffix("/v1"))
            ready.set()

    def run() -> None:
        try:
            run_service(request, hear)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            failures.append(error)
            ready.set()

    monkeypatch.setattr(service, "serve", serving)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60.0)
        if address:
            use(address[0])
    finally:
        for server in servers:
            server.stop()
        thread.join(60.0)
    assert not thread.is_alive()
    if failures:
        raise failures[0]

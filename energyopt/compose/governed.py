"""Power limits of a serving process: none, fixed ones, or ones that a governor moves while the SLO keeps a margin."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import cast

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError, EngineError
from energyopt.core.records import RequestRecord, StepRecord
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds
from engine.batch import CacheShape
from engine.output import Output
from engine.ports import EngineStats, ServingEngine
from engine.request import SamplingParams
from telemetry.control.governor import Governor, Rules
from telemetry.control.leased import HeldLease, LeasedPower
from telemetry.control.loop import Actuator, GovernorLoop
from telemetry.control.metrics import ControlCollector
from telemetry.control.ports import DeviceLimits
from telemetry.control.window import LatencyWindow

WINDOW = Seconds(10.0)
"""Latencies of this long are judged, and a lower level is given this long to show what it does."""
FLOOR_SHARE = 0.5
"""Of the highest SM clock. Below about half, steps grow so long that a joule is saved no more."""
CLOCK_GRAIN, CAP_GRAIN = 15e6, 5.0
"""Steps in which drivers take clocks (Hz) and in which a cap is worth moving (W)."""


@dataclass(frozen=True, slots=True)
class Governed:
    """The parts of a governor at work."""

    window: LatencyWindow
    loop: GovernorLoop


@dataclass(frozen=True, slots=True)
class PowerControl:
    """What a serving process holds; both None where nothing was asked."""

    lease: HeldLease | None
    governed: Governed | None

    @property
    def collector(self) -> ControlCollector | None:
        """Its series for the metrics page."""
        if self.lease is None:
            return None
        return ControlCollector(self.lease, None if self.governed is None else self.governed.loop)

    def watch(self, engine: ServingEngine, clock: Clock) -> ServingEngine:
        """The engine, with its first tokens told to the governor."""
        return engine if self.governed is None else WatchedEngine(engine, self.governed.window, clock)

    def on_step(self, record: StepRecord) -> None:
        if self.governed is not None:
            self.governed.window.step(record)

    def on_request(self, record: RequestRecord) -> None:
        if self.governed is not None:
            self.governed.window.request(record)

    def start(self) -> None:
        """Begin to govern, once the engine serves."""
        if self.governed is not None:
            self.governed.loop.start()


@contextmanager
def fixed_power(leased: LeasedPower, power: PowerConfig, tell: Callable[[str], None]) -> Iterator[PowerControl]:
    """The limits asked for, if any, for the duration of the block. Raises ControlError."""
    if power == PowerConfig():
        yield PowerControl(None, None)
        return
    with leased.held(power) as lease:
        cap = "" if power.cap is None else f" at {power.cap:g} W"
        clock = "" if power.sm_clock is None else f" up to {power.sm_clock / 1e6:.0f} MHz"
        tell(f"power: {', '.join(lease.devices)} held{cap}{clock}; what was found comes back at the end")
        yield PowerControl(lease, None)


@contextmanager
def governed_power(
    leased: LeasedPower,
    limits: Sequence[DeviceLimits],
    power: PowerConfig,
    slos: Sequence[Slo],
    tell: Callable[[str], None],
) -> Iterator[PowerControl]:
    """A governor over devices with these limits; an SM clock in ``power`` is its highest. Raises ControlError."""
    actuator = choose_actuator(limits, power)
    window = LatencyWindow(slos, WINDOW)
    rules = Rules(actuator.floor, actuator.top, settle=WINDOW, grain=actuator.grain)
    with leased.held(actuator.power(actuator.top)) as lease:
        loop = GovernorLoop(Governor(rules), window, lease, actuator, MonotonicClock(), tell)
        tell(
            f"power: the governor moves the {actuator.kind.replace('_', ' ').replace('sm', 'SM')} between "
            f"{actuator.said(actuator.floor)} and {actuator.said(actuator.top)} while {', '.join(map(str, slos))} hold"
        )
        try:
            yield PowerControl(lease, Governed(window, loop))
        finally:
            loop.end()


def choose_actuator(limits: Sequence[DeviceLimits], power: PowerConfig) -> Actuator:
    """The SM clock where every device states its highest, else the cap; never above what was found.

    A clock acts on every step; a cap only where the power would exceed it.
    """
    clocks = [known.max_clock for known in limits if known.max_clock is not None]
    if clocks and len(clocks) == len(limits):
        top = min(*clocks, power.sm_clock or clocks[0], clocks[0])
        return Actuator("sm_clock", FLOOR_SHARE * min(clocks), top, CLOCK_GRAIN)
    if power.sm_clock is not None:
        raise ControlError("An SM clock cannot bound the governor here: not every device states its clocks.")
    low, found = max(known.low for known in limits), min(known.requested for known in limits)
    if low >= found:
        raise ControlError(f"The governor has no room: devices take caps from {low:g} W and stand at {found:g} W.")
    return Actuator("cap", low, found, CAP_GRAIN)


class WatchedEngine:
    """Passes everything through, and tells a window when requests come and when their first tokens do."""

    def __init__(self, engine: ServingEngine, window: LatencyWindow, clock: Clock) -> None:
        self._engine = engine
        self._window = window
        self._clock = clock

    @property
    def cache(self) -> CacheShape:
        return self._engine.cache

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def alive(self) -> bool:
        return self._engine.alive

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, request_id: str, session: str | None = None
    ) -> AsyncIterator[Output]:
        """As the engine's. A request that it refuses for want of room counts as a latency without end."""
        self._window.arrived(request_id, self._clock.now())
        waiting, failed = True, False
        outputs = self._engine.generate(prompt, params, request_id=request_id, session=session)
        try:
            async with aclosing(cast(AsyncGenerator[Output, None], outputs)):
                async for output in outputs:
                    if waiting and output.token_ids:
                        waiting = False
                        self._window.first_token(request_id, self._clock.now())
                    yield output
        except EngineError:
            failed = True
            raise
        finally:
            if waiting:
                self._window.left(request_id, self._clock.now(), failed=failed)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    async def reset_prefix_cache(self, tier: str | None = None) -> int:
        return await self._engine.reset_prefix_cache(tier)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()

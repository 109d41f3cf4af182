"""How late the client itself was: a load generator that cannot keep up measures itself, not the server."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from dataclasses import dataclass

from energyopt.core.clock import Clock
from energyopt.core.slo import quantile
from energyopt.core.units import Seconds

MAX_LAG = Seconds(0.1)
"""99% of the requests must leave, and of the loop's wake-ups come, within this time of when they should."""
_TICK = Seconds(0.02)


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """``send_lag`` and ``loop_lag`` are 99th percentiles in seconds; ``cpu`` is CPU seconds a second."""

    send_lag: Seconds
    loop_lag: Seconds
    cpu: float

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the run says nothing about the server; () if the client kept up."""
        found = []
        if self.send_lag > MAX_LAG:
            found.append(f"client_lagged: 1% of the requests left over {self.send_lag * 1e3:.0f} ms late")
        if self.loop_lag > MAX_LAG:
            found.append(f"client_stalled: 1% of its wake-ups came over {self.loop_lag * 1e3:.0f} ms late")
        return tuple(found)


class LagMeter:
    """Wakes every 20 ms and notes by how much too late; ``run`` until cancelled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late: list[tuple[float, float]] = []
        self._cpu: list[tuple[float, float]] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            due = self._clock.now() + _TICK
            await asyncio.sleep(_TICK)
            now = self._clock.now()
            self._late.append((now, now - due))
            self._cpu.append((now, cpu_seconds()))

    def between(self, start: Seconds, end: Seconds, send_lags: Sequence[float]) -> ClientLoad:
        """What it saw in a window."""
        late = [lag for at, lag in self._late if start <= at < end]
        used = [(at, cpu) for at, cpu in self._cpu if start <= at < end]
        span = used[-1][0] - used[0][0] if len(used) > 1 else 0.0
        cpu = (used[-1][1] - used[0][1]) / span if span > 0 else 0.0
        return ClientLoad(_high(send_lags), _high(late), cpu)


def _high(values: Sequence[float]) -> Seconds:
    return Seconds(quantile(values, 0.99)) if values else Seconds(0.0)


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

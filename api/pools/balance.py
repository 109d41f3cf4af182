"""Measures both pools and lets engines change their role: the automatic mode of ``serve --prefill --decode``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from energyopt.core.clock import Clock
from engine.disagg.rebalance import PoolLoad, Rebalancer

from .app import PoolsFront
from .workers import Role, Worker

WINDOW, LOOK = 10.0, 0.5
"""Seconds of one measurement, and between two looks at how many legs run."""

_ENOUGH_WORK = 0.2
"""Busy share from which the draw of work can be told from that of rest."""

_STEP_SECONDS = re.compile(r"^energyopt_step_seconds_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_ENERGY = re.compile(r'^energyopt_gpu_energy_joules_total\{[^}]*gpu_uuid="([^"]*)"[^}]*\} (\S+)', re.MULTILINE)


class Balancer:
    """One task beside the requests. ``seats`` are the requests that a decode engine runs at once.

    A prefill engine is busy while it steps. A decode engine steps whenever it has one request, so it counts as busy by
    the share of its seats that are taken: an upper bound of what it can still take, since fuller steps are slower.
    Watts are those of each engine's own devices; where engines share one there are none.
    """

    def __init__(self, front: PoolsFront, clock: Clock, seats: int, *, window: float = WINDOW) -> None:
        self._front = front
        self._clock = clock
        self._seats = seats
        self._window = window
        self._rebalancer = Rebalancer()
        self._idle: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            loads = await self.measure()
            if loads is None:
                continue
            wanted = self._rebalancer.decide(*loads)
            if wanted is not None:
                self._front.resize(wanted)

    async def measure(self) -> tuple[PoolLoad, PoolLoad] | None:
        """Both pools over one window; None if an engine was down or changed its role in it."""
        before, start = await self._look(), self._clock.now()
        taken: dict[str, list[int]] = {worker.name: [] for worker in self._front.pools.workers}
        while self._clock.now() - start < self._window:
            await asyncio.sleep(min(LOOK, self._window / 4))
            for worker in self._front.pools.workers:
                taken[worker.name].append(worker.legs[Role.DECODE])
        after, seconds = await self._look(), self._clock.now() - start
        if before.keys() != after.keys() or len(after) < len(taken):
            return None
        if any(before[name].role is not seen.role or seen.steps < before[name].steps for name, seen in after.items()):
            return None
        occupied = {name: sum(counts) / len(counts) / self._seats for name, counts in taken.items()}
        prefill = self._load(Role.PREFILL, before, after, seconds, occupied)
        return prefill, self._load(Role.DECODE, before, after, seconds, occupied)

    def _load(
        self,
        role: Role,
        before: Mapping[str, _Seen],
        after: Mapping[str, _Seen],
        seconds: float,
        occupied: Mapping[str, float],
    ) -> PoolLoad:
        mine = [name for name, seen in after.items() if seen.role is role]
        steps = {name: (after[name].steps - before[name].steps) / seconds for name in mine}
        busy = {name: min(1.0, steps[name] if role is Role.PREFILL else occupied[name]) for name in mine}
        mean = sum(busy.values()) / len(mine)
        flow = sum(after[name].served - before[name].served for name in mine) / seconds
        draws = [_watts(before[name], after[name], seconds) for name in mine]
        idle, busiest = self._watts(mine, [watts for watts in draws if watts is not None], mean)
        return PoolLoad(len(mine), flow, mean, max(busy.values()) > 0.95, busiest, idle)

    def _watts(self, mine: list[str], seen: list[float], busy: float) -> tuple[float | None, float | None]:
        """Idle and busy watts of one engine: the least that was seen, and what the present draw means at full load."""
        if len(seen) < len(mine):
            return None, None
        for name, watts in zip(mine, seen, strict=True):
            self._idle[name] = min(watts, self._idle.get(name, watts))
        if busy < _ENOUGH_WORK:
            return None, None
        idle = sum(self._idle[name] for name in mine) / len(mine)
        return idle, idle + max(0.0, sum(seen) / len(seen) - idle) / busy

    async def _look(self) -> dict[str, _Seen]:
        pages = await self._front.pages()
        found: dict[str, _Seen] = {}
        for worker in self._front.pools.workers:
            steps = _STEP_SECONDS.search(pages.get(worker.name, ""))
            if steps is not None:
                found[worker.name] = _Seen(worker, float(steps.group(1)), _joules(pages[worker.name]))
        return found


class _Seen:
    """An engine at one moment: its role, the seconds it has stepped, its finished legs, its devices' joules."""

    def __init__(self, worker: Worker, steps: float, joules: float | None) -> None:
        self.role = worker.role
        self.steps = steps
        self.served = worker.served[worker.role]
        self.joules = joules


def _joules(page: str) -> float | None:
    """Of all devices of an engine since its start; of a device with several sensors, that which covers most."""
    devices: dict[str, float] = {}
    for device, joules in _ENERGY.findall(page):
        devices[device] = max(float(joules), devices.get(device, 0.0))
    return sum(devices.values()) if devices else None


def _watts(before: _Seen, after: _Seen, seconds: float) -> float | None:
    if before.joules is None or after.joules is None or after.joules < before.joules:
        return None
    return (after.joules - before.joules) / seconds

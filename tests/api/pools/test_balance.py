"""What the balancer reads from the engines' pages, and that it moves a role when one pool waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from api.pools.app import PoolsFront
from api.pools.balance import Balancer
from api.pools.workers import Pools, Role
from energyopt.core.clock import MonotonicClock

ROLES = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE, "decode-1": Role.DECODE}


class Pages(PoolsFront):
    """A front whose engines are busy as ``shares`` say, and finish a prefill leg at each look."""

    def __init__(self, shares: Mapping[str, float], watts: float | None = None) -> None:
        self.clock = MonotonicClock()
        super().__init__(Pools(ROLES, self.clock), self.clock)
        self.shares = shares
        self.watts = watts
        self.start = self.clock.now()
        for worker in self.pools.workers:
            self.pools.up(worker.name, "http://engine")

    async def pages(self) -> dict[str, str]:
        pages = {}
        for worker in self.pools.workers:
            worker.served[worker.role] += 5
            seconds = self.shares[worker.name] * (self.clock.now() - self.start)
            pages[worker.name] = f'energyopt_step_seconds_total{{model="m"}} {seconds}\n'
            if self.watts is not None:
                joules = self.watts * (self.clock.now() - self.start)
                for scope, share in (("gpu", 0.9), ("module", 1.0)):
                    labels = f'gpu_uuid="GPU-{worker.name}",scope="{scope}",source="counter"'
                    pages[worker.name] += f"energyopt_gpu_energy_joules_total{{{labels}}} {joules * share}\n"
        return pages


async def test_a_window_says_how_busy_each_pool_was() -> None:
    front = Pages({"prefill-0": 1.0, "decode-0": 1.0, "decode-1": 1.0}, watts=200.0)
    front.pools.workers[1].legs[Role.DECODE] = 4
    loads = await Balancer(front, front.clock, seats=8, window=0.2).measure()
    assert loads is not None
    prefill, decode = loads
    assert (prefill.engines, decode.engines) == (1, 2)
    assert prefill.busy == pytest.approx(1.0, abs=0.1)
    assert prefill.waiting
    assert decode.busy == pytest.approx(0.25)
    assert prefill.flow == pytest.approx(5 / 0.2, rel=0.3)
    assert prefill.idle_watts == pytest.approx(200.0, rel=0.1)
    assert decode.busy_watts is not None


async def test_an_engine_that_is_down_or_changed_spoils_the_window() -> None:
    front = Pages(dict.fromkeys(ROLES, 0.5))
    balancer = Balancer(front, front.clock, seats=8, window=0.1)
    measuring = asyncio.create_task(balancer.measure())
    await asyncio.sleep(0.03)
    front.pools.resize(2)
    assert await measuring is None


async def test_the_pool_that_everybody_waits_for_grows() -> None:
    front = Pages({"prefill-0": 1.0, "decode-0": 0.2, "decode-1": 0.2})
    front.pools.workers[1].legs[Role.DECODE] = 1
    running = asyncio.create_task(Balancer(front, front.clock, seats=16, window=0.05).run())
    deadline = front.clock.now() + 10
    while front.pools.count(Role.PREFILL) == 1:
        assert front.clock.now() < deadline
        await asyncio.sleep(0.01)
    running.cancel()
    assert front.counts["role_changes"] == 1

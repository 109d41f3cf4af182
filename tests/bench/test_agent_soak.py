"""Ten times the design load for an hour of virtual time: no sample lost, no queue, no growth."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.results import Scope
from energyopt.core.units import Seconds
from telemetry.agent import Agent
from telemetry.agent_metrics import CollectorHealth
from telemetry.detect import Detection
from telemetry.fake import FakeSource
from telemetry.host import HostScan
from telemetry.ports import EnergyChunk, SensorId
from tests.bench.figures import Report

pytestmark = pytest.mark.bench

SENSORS, RATE, MINUTES = 8, 100, 60
SETTLED = 20
"""Minutes after which nothing may grow: a curve remembers 15."""


class Scan(HostScan):
    """Finds fake sensors once."""

    def __init__(self, clock: FakeClock, found: Detection) -> None:
        super().__init__(clock)
        self._found = [found]

    def scan(self) -> Detection:
        return self._found.pop() if self._found else Detection((), ())

    def health(self) -> tuple[CollectorHealth, ...]:
        return ()


class Sums:
    """Adds up what it is given and keeps nothing."""

    def __init__(self) -> None:
        self.joules = 0.0
        self.chunks = 0

    def accept(self, chunks: Sequence[EnergyChunk]) -> None:
        self.joules += sum(chunk.joules for chunk in chunks)
        self.chunks += len(chunks)

    def close(self) -> None:
        """Nothing is kept."""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.timeout(900)
def test_an_hour_at_ten_times_the_load(figure: Report) -> None:
    clock, sums = FakeClock(), Sums()
    sources = [FakeSource(clock, sensor=SensorId(f"GPU-{i}", Scope.GPU), tick=0.1) for i in range(SENSORS)]
    agent = Agent(Scan(clock, Detection(tuple(sources), ())), clock, sums, period=Seconds(1 / RATE))
    agent.look()
    memory: list[int] = []
    points: list[int] = []
    began = time.process_time()
    for _ in range(MINUTES):
        for _ in range(60):
            for _ in range(RATE):
                clock.advance(1 / RATE)
                agent.sampler.step()
            agent.step()
        memory.append(resident())
        points.append(sum(channel.curve.points for channel in agent.sampler.channels))
    cpu = time.process_time() - began
    agent.stop()
    reads = [source.reads for source in sources]
    total = sum(channel.curve.total or 0.0 for channel in agent.sampler.channels)
    grown = max(memory[SETTLED:]) - memory[SETTLED]
    print(  # noqa: T201 - the figure is the point
        f"\n{SENSORS} sensors at {RATE} Hz for {MINUTES} min: {sum(reads):,} samples in {cpu:.0f} s of CPU "
        f"({cpu / sum(reads) * 1e6:.0f} µs each, stepping included), {sums.chunks:,} pieces; after {SETTLED} min "
        f"memory grew by {grown / 1e6:.1f} MB, points from {points[SETTLED]:,} to at most {max(points[SETTLED:]):,}"
    )
    figure("agent: an hour at ten times the load, processor time a sample", cpu / sum(reads) * 1e6, "us")
    figure("agent: an hour at ten times the load, memory grown", grown / 1e6, "MB", "under 5")
    assert min(reads) >= 0.999 * RATE * 60 * MINUTES
    assert all(channel.errors == 0 for channel in agent.sampler.channels)
    assert sums.joules == pytest.approx(total)
    assert sums.joules == pytest.approx(300.0 * SENSORS * 60 * MINUTES, rel=0.001)
    assert max(points[SETTLED:]) <= 1.2 * points[SETTLED]
    assert grown < 5e6

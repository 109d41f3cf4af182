"""Figures of a real GPU: counter tick, counter against integral, cost of a reading, joules per token.

``pytest -m gpu -s tests/telemetry/test_gpu_measurements.py`` prints a table and keeps it under ``docs/measurements``
with the device's name and driver. It only reads: no clock, limit or mode is touched. The measuring itself is tested
on a fake sensor, so that it works on the day a GPU is at hand.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from energyopt.compose.rig import ignore_request, load_engine
from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import SensorUnavailableError
from energyopt.core.records import StepRecord
from energyopt.core.results import EnergyTotal, total_energy
from energyopt.core.units import Seconds, format_figure
from engine.request import SamplingParams
from telemetry.curve import EnergyCurve
from telemetry.fake import FakeSource
from telemetry.host import HostScan
from telemetry.ports import PowerSource
from telemetry.status import DeviceInfo

FOLDER = Path(__file__).parents[2] / "docs/measurements"
PROMPT, OUTPUT, REQUESTS = 512, 128, 32
"""The fixed workload: requests at once, each with so many random prompt tokens and greedy output tokens."""


@dataclass(frozen=True)
class SensorFigures:
    """``tick`` and ``shortest_tick``: median and least time between changes of the counter, None without one."""

    device: str
    source: str
    tick: float | None
    shortest_tick: float | None
    ratio: float | None
    read_seconds: float
    mean_power: float | None
    error_share: float | None


def measure_sensor(source: PowerSource, clock: Clock, seconds: float, period: float = 0.001) -> SensorFigures:
    """Read as fast as ``period`` and see when the counter changes; every tenth reading goes into a curve."""
    curve, changes, costs = EnergyCurve.of(source), [], []
    before, end, count = None, clock.now() + seconds, 0
    while clock.now() < end:
        began = time.perf_counter()
        sample = source.read()
        costs.append(time.perf_counter() - began)
        if sample.counter is not None and sample.counter != before:
            changes.append(sample.at)
            before = sample.counter
        if count % 10 == 0:
            curve.add(sample)
        count += 1
        clock.sleep(Seconds(period))
    gaps = [later - earlier for earlier, later in pairwise(changes[1:])]
    span = curve.coverage
    reading = None if span is None or span[1] <= span[0] else curve.window(*span)
    return SensorFigures(
        device=source.sensor.device,
        source=str(source.source),
        tick=statistics.median(gaps) if gaps else None,
        shortest_tick=min(gaps) if gaps else None,
        ratio=curve.crosscheck,
        read_seconds=statistics.median(costs),
        mean_power=None if reading is None else reading.mean_power,
        error_share=None if reading is None or not reading.joules else reading.error / reading.joules,
    )


def table(figures: Sequence[SensorFigures], energy: EnergyTotal | None, tokens: int) -> str:
    """Markdown; what is not known is a dash."""
    head = (
        "| device | source | tick ms | shortest ms | counter/integral | read µs | mean W | error % |\n|" + " --- |" * 8
    )
    rows = [
        "| "
        + " | ".join(
            (
                one.device,
                one.source,
                *(
                    format_figure(None if value is None else value * factor)
                    for value, factor in (
                        (one.tick, 1e3),
                        (one.shortest_tick, 1e3),
                        (one.ratio, 1),
                        (one.read_seconds, 1e6),
                        (one.mean_power, 1),
                        (one.error_share, 100),
                    )
                ),
            )
        )
        + " |"
        for one in figures
    ]
    per_token = "not measured"
    if energy is not None:
        joules, error = format_figure(energy.joules / tokens), format_figure(energy.error / tokens)
        per_token = f"{joules} ± {error} J per output token ({energy.label}), {tokens} tokens"
    workload = f"{REQUESTS} requests at once, {PROMPT} prompt and {OUTPUT} output tokens each, smollm2-135m"
    return "\n".join((head, *rows, "", f"Energy of {workload}: {per_token}.", ""))


def file_name(info: DeviceInfo) -> str:
    words = f"{info.model}-{info.driver or 'unknown'}".lower()
    return re.sub(r"[^a-z0-9.]+", "-", words).strip("-") + ".md"


def measure_tokens() -> tuple[EnergyTotal | None, int]:
    """The fixed workload on the GPU; joules of its sensors over exactly its time, and the output tokens."""
    config = EngineConfig(model="smollm2-135m", device="cuda")
    steps: list[StepRecord] = []
    engine = load_engine(config, "auto").start(steps.append, ignore_request)

    async def one(index: int) -> int:
        prompt = [(index * 7919 + position * 104729) % 40_000 + 100 for position in range(PROMPT)]
        params = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True)
        records = [
            output.record
            async for output in engine.front.generate(prompt, params, request_id=f"r{index}", session=f"s{index}")
        ]
        return sum(record.output_tokens for record in records if record is not None)

    async def everything() -> int:
        return sum(await asyncio.gather(*(one(index) for index in range(REQUESTS))))

    try:
        asyncio.run(everything())  # once for compilation and clocks
        steps.clear()
        tokens = asyncio.run(everything())
        return total_energy(engine.meter.readings(steps[0].start, steps[-1].end)), tokens
    finally:
        engine.close()


@pytest.mark.gpu
def test_figures_of_every_gpu_here() -> None:
    clock = MonotonicClock()
    scan = HostScan(clock)
    found = scan.scan()
    gpus = [source for source in found.sources if not source.sensor.device.startswith("cpu")]
    if not gpus:
        pytest.skip(f"no GPU sensor: {' '.join(found.reasons)}")
    figures = [measure_sensor(source, clock, 10.0) for source in gpus]
    try:
        energy, tokens = measure_tokens()
    except SensorUnavailableError as error:
        pytest.skip(str(error))
    text = table(figures, energy, tokens)
    print(f"\n{text}")  # noqa: T201 - the table is the point
    FOLDER.mkdir(parents=True, exist_ok=True)
    info = found.statuses[0].info
    title = f"# {info.model}, driver {info.driver or 'unknown'}\n\n"
    (FOLDER / file_name(info)).write_text(title + text, encoding="utf-8")
    scan.close()
    for one in figures:
        assert one.read_seconds < 0.1
        assert one.tick is None or 0.001 <= one.tick <= 1.0
        assert one.ratio is None or 0.3 < one.ratio < 3.0


def test_the_measuring_finds_what_a_known_sensor_does() -> None:
    clock = MonotonicClock()
    source = FakeSource(clock, tick=0.1)
    found = measure_sensor(source, clock, 1.6)
    assert found.tick == pytest.approx(0.1, abs=0.02)
    assert found.ratio == pytest.approx(1.0, abs=0.15)
    assert found.mean_power == pytest.approx(300.0, rel=0.05)
    power_only = measure_sensor(FakeSource(clock, with_counter=False), clock, 0.2)
    assert power_only.tick is None


def test_the_table_says_what_is_known_and_dashes_what_is_not() -> None:
    one = SensorFigures("GPU-1", "counter", 0.1, 0.098, None, 25e-6, 300.0, 0.02)
    text = table([one], None, 0)
    assert "| GPU-1 | counter | 100 | 98 | — | 25 | 300 | 2 |" in text
    assert "not measured" in text
    assert (
        file_name(DeviceInfo("GPU-1", "nvidia", "NVIDIA H200 (SXM)", 0, driver="580.1")) == "nvidia-h200-sxm-580.1.md"
    )

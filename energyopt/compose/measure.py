"""Joules of any command: sensors on, the command between two looks at the clock, each sensor's answer on its own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import SensorError
from energyopt.core.footprint import Footprint, FootprintConfig
from energyopt.core.results import EnergyReading, EnergyTotal, total_energy
from energyopt.core.units import Joules, Seconds, Watts
from telemetry.meter import Meter

from .command import Ended, held_signals, run_command
from .footprint import footprint_rates
from .host_meter import await_sensors, host_meter
from .kept_run import Keep, kept_run


class Progress(NamedTuple):
    """Where a measurement stands. None: not known, or nothing is measured."""

    seconds: Seconds
    joules: Joules | None
    watts: Watts | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A command that has ended, and what it took. ``total`` is None unless every sensor answered."""

    command: tuple[str, ...]
    started: datetime
    ended: Ended
    readings: tuple[EnergyReading, ...]
    total: EnergyTotal | None
    reasons: tuple[str, ...]
    footprint: Footprint | None

    @property
    def seconds(self) -> Seconds:
        return Seconds(self.ended.end - self.ended.start)

    def document(self) -> dict[str, object]:
        """One JSON-ready document, in base units."""
        return {
            "command": list(self.command),
            "exit_code": self.ended.exit_code,
            "signal": self.ended.signal,
            "started": self.started.isoformat(),
            "seconds": self.seconds,
            "cpu_seconds": self.ended.cpu_seconds,
            "devices": [
                {**reading.model_dump(mode="json"), "mean_watts": reading.mean_power} for reading in self.readings
            ],
            "total": None if self.total is None else self.total.model_dump(mode="json"),
            "footprint": None if self.footprint is None else self.footprint.model_dump(mode="json"),
            "notes": list(self.reasons),
        }


def measure_command(
    command: Sequence[str],
    *,
    meter_kind: str = "auto",
    footprint: FootprintConfig = FootprintConfig(),
    environment: Mapping[str, str] = os.environ,
    on_tick: Callable[[Progress], None] = lambda progress: None,
    open_meter: Callable[[str, Clock], Meter] = host_meter,
    keep: Keep | None = None,
) -> Measured:
    """Run ``command`` and measure the machine meanwhile; ``keep`` says where every piece of its energy is stored.

    Raises CommandError, ConfigError, SensorUnavailableError, StoreError.
    """
    clock = MonotonicClock()
    with held_signals(), kept_run(keep, clock) as run, open_meter(meter_kind, clock) as meter:
        rates = footprint_rates(footprint, [channel.curve.sensor.scope for channel in meter.channels])
        await_sensors(meter, clock)
        begun = [_total(meter)]
        started = clock.utc()

        def tick(ran: Seconds) -> None:
            run.hand_over(meter)
            on_tick(_progress(meter, ran, begun))

        ended = run_command(command, environment, clock, on_tick=tick)
        run.end()
        readings, reasons = _readings(meter, ended.start, ended.end)
        total = total_energy(readings) if readings and len(readings) == len(meter.channels) else None
        found = None if rates is None or total is None else rates.of(total, started, clock.utc())
        run.hand_over(meter, last=True)
        return Measured(tuple(command), started, ended, readings, total, reasons, found)


def _readings(meter: Meter, start: Seconds, end: Seconds) -> tuple[tuple[EnergyReading, ...], tuple[str, ...]]:
    """All readings; where a sensor cannot tell, those of the others and the reason."""
    whole = meter.readings(start, end)
    if whole or not meter.channels:
        return whole, meter.reasons
    readings = []
    for channel in meter.channels:
        try:
            readings.append(channel.curve.window(start, end))
        except SensorError:  # meter.readings has put its words among the reasons
            continue
    return tuple(readings), meter.reasons


def _total(meter: Meter) -> float | None:
    known = [channel.curve.total for channel in meter.channels]
    return math.fsum(joules for joules in known if joules is not None) if known and None not in known else None


def _progress(meter: Meter, seconds: Seconds, begun: list[float | None]) -> Progress:
    """``begun`` holds the total at the start, and is set late if a sensor began late."""
    total = _total(meter)
    if begun[0] is None:
        begun[0] = total
    powers = [channel.sample.power if channel.sample else None for channel in meter.channels]
    watts = math.fsum(power for power in powers if power is not None) if powers and None not in powers else None
    joules = None if total is None or begun[0] is None else Joules(total - begun[0])
    return Progress(seconds, joules, None if watts is None else Watts(watts))

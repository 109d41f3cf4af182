"""Joules of a CPU without a meter: a model of its utilisation, labelled ESTIMATED wherever it goes.

Power is taken as linear in utilisation between an idle share and full load. With ``/proc/stat`` counting busy time,
energy is then a linear function of two counters and needs no sampling of its own:
E = P_idle x elapsed + (P_full - P_idle) x busy CPU seconds / CPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts

from .cpu import CpuPower, describe_cpu
from .ports import Sample, SensorId

IDLE_SHARE = 0.22
"""Power at rest over power at full load.

Median over six server generations of SPECpower_ssj2008 results as compiled by the Cloud Carbon Footprint project
(idle/full watts per vCPU: Haswell 1.90/5.99, Broadwell 0.71/3.54, Skylake 0.64/4.05, Cascade Lake 0.64/3.80,
EPYC 2 0.47/1.64, EPYC 3 0.45/1.87). That power is close to linear in utilisation between the two is the finding of
Fan, Weber and Barroso, ISCA 2007, section 3.
"""
RELATIVE_ERROR = 0.5
"""Stated, not fitted: the same TDP covers parts whose draw under one load differs by about a factor of two."""
MIN_MEAN = 0.02
"""Seconds below which a mean power would be mostly the kernel's 10 ms grain."""
MAX_STAT = 1 << 16
BUSY_COLUMNS = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq. Guest time is within user; iowait is idle; steal is another machine's work."""


class EstimatedCpuSource:
    """All CPUs of this machine (or its share of a host, in a virtual machine) as one sensor.

    ``root`` holds ``proc/stat`` and ``proc/cpuinfo``. Raises SensorUnavailableError where they cannot be read.
    """

    def __init__(self, clock: Clock, *, root: Path = Path("/"), device: str = "cpu:0") -> None:
        self._clock = clock
        self._stat = root / "proc/stat"
        self._hertz = os.sysconf("SC_CLK_TCK")
        self.cpu: CpuPower = describe_cpu(root / "proc/cpuinfo")
        self.sensor = SensorId(device, Scope.CPU_PACKAGE)
        self.source = Source.ESTIMATED
        self.max_power = Watts(self.cpu.watts)
        self.relative_error = RELATIVE_ERROR
        try:
            self._first = self._newest = (float(clock.now()), self._busy())
        except SensorError as error:
            raise SensorUnavailableError(f"CPU energy cannot be estimated: {error}") from error

    @property
    def note(self) -> str:
        """What the estimate rests on, for reports."""
        return (
            f"CPU energy is estimated from utilisation, ±{RELATIVE_ERROR:.0%}: {self.cpu.basis}, "
            f"{self.cpu.watts:.0f} W at full load."
        )

    def read(self) -> Sample:
        """Modelled energy since the start; the power is the mean since the reading before."""
        now = (float(self._clock.now()), self._busy())
        elapsed = now[0] - self._newest[0]
        power = None if elapsed < MIN_MEAN else Watts(max(0.0, self._model(self._newest, now) / elapsed))
        if power is not None:
            self._newest = now
        return Sample(at=Seconds(now[0]), counter=Joules(self._model(self._first, now)), power=power)

    def close(self) -> None:
        """Nothing is held open."""

    def _model(self, before: tuple[float, float], after: tuple[float, float]) -> float:
        """Joules between two moments, each a time and the busy seconds until then."""
        elapsed, busy = after[0] - before[0], after[1] - before[1]
        return self.cpu.watts * (IDLE_SHARE * elapsed + (1 - IDLE_SHARE) * busy / self.cpu.cpus)

    def _busy(self) -> float:
        """CPU seconds all CPUs were busy since boot."""
        try:
            with self._stat.open("rb") as file:
                line = file.readline(MAX_STAT).split()
            if line[0] != b"cpu":
                raise ValueError(line[0])
            return sum(int(line[1 + column]) for column in BUSY_COLUMNS) / self._hertz
        except (OSError, ValueError, IndexError) as error:
            raise SensorError(f"{self._stat} could not be read: {error}.") from error

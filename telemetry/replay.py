"""A recorded sensor: a CSV file played back as if it were measured now.

The file has a header and the columns ``at`` (seconds, growing), ``counter`` (joules) and ``power`` (watts); an empty
cell means that the value was not read. Playback begins at the first row when the source is made.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Source
from energyopt.core.units import Joules, Seconds, Watts

from .ports import Sample, SensorId

COLUMNS = ("at", "counter", "power")
MAX_BYTES = 256 << 20


class ReplaySource:
    """One sensor of a recording; ``source`` is how the recorded joules were obtained.

    Raises SensorUnavailableError, naming the line, for a file that is no recording.
    """

    def __init__(
        self,
        clock: Clock,
        path: Path,
        sensor: SensorId,
        *,
        source: Source = Source.COUNTER,
        max_power: Watts | None = None,
        relative_error: float = 0.0,
    ) -> None:
        self._clock = clock
        self._path = path
        self.sensor = sensor
        self.source = source
        self.max_power = max_power
        self.relative_error = relative_error
        self._samples = tuple(read_recording(path))
        if not self._samples:
            raise SensorUnavailableError(f"{path} holds no samples.")
        self._times = [sample.at for sample in self._samples]
        self._shift = clock.now() - self._times[0]

    def read(self) -> Sample:
        """The newest recorded values, as a sensor holds them until its next update. Raises SensorError at the end."""
        now = self._clock.now()
        index = bisect_right(self._times, now - self._shift) - 1
        if index < 0 or now - self._shift > self._times[-1]:
            raise SensorError(f"{self._path} has no sample for this time: its last is at {self._times[-1]:.3f} s.")
        held = self._samples[index]
        return Sample(at=now, counter=held.counter, power=held.power)

    def close(self) -> None:
        """Nothing is held open."""


def read_recording(path: Path) -> Iterator[Sample]:
    """The samples of a recording at their recorded times, for feeding a curve directly."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SensorUnavailableError(f"{path} is larger than {MAX_BYTES >> 20} MiB.")
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != COLUMNS:
                raise SensorUnavailableError(f"{path} must begin with the columns {','.join(COLUMNS)}.")
            last = -math.inf
            for row in rows:
                sample = _sample(path, rows.line_num, row, last)
                last = sample.at
                yield sample
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SensorUnavailableError(f"{path} cannot be read: {error}.") from error


def _sample(path: Path, line: int, row: dict[str, str | None], last: float) -> Sample:
    try:
        at, counter, power = (_number(row[column]) for column in COLUMNS)
    except ValueError as error:
        raise SensorUnavailableError(f"{path}, line {line}: {error}.") from error
    if at is None or not at > last or (counter is None and power is None):
        raise SensorUnavailableError(f"{path}, line {line}: expected a growing time and a counter or a power.")
    return Sample(
        at=Seconds(at),
        counter=None if counter is None else Joules(counter),
        power=None if power is None else Watts(power),
    )


def _number(text: str | None) -> float | None:
    if not text:
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value

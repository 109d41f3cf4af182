"""E(t) of one physical sensor: monotone, piecewise linear, with an error on everything read from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from energyopt.core.errors import SensorError
from energyopt.core.results import EnergyReading, Source
from energyopt.core.units import Joules, Seconds, Watts

from .booking import SampleRules
from .ports import PowerSource, Sample, SensorId
from .timeline import NANOJOULES, Timeline

RETENTION = Seconds(900.0)
"""How far back a window may reach."""
BATCH = 128
"""Samples that may wait to be booked: more than an agent takes between two hand-overs, so that it books them there."""
MAX_TAIL = 2.0
"""Seconds beyond the last settled energy that a provisional reading may reach."""


class EnergyCurve:
    """Energy of one sensor since its first sample, answering for windows of the past.

    It knows nothing of requests. Memory is bounded by ``retention``. Thread-safe. Times are those of the samples.
    """

    def __init__(
        self,
        sensor: SensorId,
        source: Source,
        *,
        max_power: Watts | None = None,
        relative_error: float = 0.0,
        retention: Seconds = RETENTION,
    ) -> None:
        self.sensor = sensor
        self.source = source
        self._relative_error = relative_error
        self._rules = SampleRules(source, max_power)
        self._timeline = Timeline(retention)
        self._unbooked: list[Sample] = []
        self._lock = RLock()

    @classmethod
    def of(cls, source: PowerSource, *, retention: Seconds = RETENTION) -> EnergyCurve:
        """The empty curve of a source."""
        return cls(
            source.sensor,
            source.source,
            max_power=source.max_power,
            relative_error=source.relative_error,
            retention=retention,
        )

    def add(self, sample: Sample) -> None:
        """Take in a sample. Nothing a sample says can make the curve fall.

        Samples are kept as they came until somebody asks, or until there are BATCH of them: booked in a row they cost
        a third of what they cost one by one, each after a pause.
        """
        with self._lock:
            self._unbooked.append(sample)
            if len(self._unbooked) >= BATCH:
                self._book()

    def _book(self) -> None:
        for sample in self._unbooked:
            for booking in self._rules.book(sample):
                self._timeline.extend(booking)
        self._unbooked.clear()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Nobody else reads or writes, and every sample is booked."""
        with self._lock:
            if self._unbooked:
                self._book()
            yield

    @property
    def coverage(self) -> tuple[Seconds, Seconds] | None:
        """From when to when energy is settled; None before the first."""
        with self._settled():
            span = self._timeline.span
            return None if span is None else (Seconds(span[0]), Seconds(span[1]))

    @property
    def tick(self) -> Seconds:
        """Seconds between updates of the sensor, inferred."""
        with self._settled():
            return self._rules.tick

    @property
    def counts(self) -> Counter[str]:
        """How many samples were refused or repaired, by reason (see SampleRules)."""
        with self._settled():
            return Counter(self._rules.counts)

    @property
    def crosscheck(self) -> float | None:
        """Energy by the counter over energy by integrated power where both are known."""
        with self._settled():
            return self._rules.crosscheck

    @property
    def total(self) -> Joules | None:
        """All settled joules since the first sample: a monotone accumulator; None before the first."""
        with self._settled():
            return Joules(self._timeline.total / NANOJOULES) if self._timeline.span else None

    @property
    def totals(self) -> dict[Source, Joules]:
        """``total`` by what it rests on; each entry only grows."""
        with self._settled():
            amounts = self._timeline.by_source.items()
            return {source: Joules(amount / NANOJOULES) for source, amount in amounts}

    @property
    def points(self) -> int:
        """Points held in memory."""
        with self._settled():
            return len(self._timeline)

    def nanojoules(self, at: Seconds) -> int:
        """E(at) in whole nanojoules. Raises SensorError outside the coverage."""
        with self._settled():
            self._check(at, at)
            return self._timeline.at(at)

    def energy(self, at: Seconds) -> Joules:
        """E(at) in joules. Raises SensorError outside the coverage."""
        return Joules(self.nanojoules(at) / NANOJOULES)

    def known(self, start: Seconds, end: Seconds) -> bool:
        """True if the window is covered and holds no gap."""
        with self._settled():
            span = self._timeline.span
            if span is None or not span[0] <= start <= end <= span[1]:
                return False
            return None not in self._timeline.sources(start, end)

    def sources(self, start: Seconds, end: Seconds) -> tuple[Source, ...]:
        """What the energy from ``start`` to ``end`` rests on, best first; an unsettled tail counts as integrated."""
        with self._settled():
            span = self._timeline.span
            found = self._timeline.sources(start, end)
            if span is None or end > span[1]:
                found.add(Source.INTEGRATED if self.source is Source.COUNTER else self.source)
            return tuple(source for source in Source if source in found)

    def window(self, start: Seconds, end: Seconds) -> EnergyReading:
        """Energy from ``start`` to ``end``: joules, their worst source and error.

        The error is power x tick at each edge that a counter made, the doubt of integrated spans, and the sensor's
        own relative error. Raises SensorError if the window is not covered or touches a gap.
        """
        with self._settled():
            self._check(start, end)
            joules = (self._timeline.at(end) - self._timeline.at(start)) / NANOJOULES
            error = self._doubt(start, end) + self._relative_error * joules
            return self._reading(joules, error, self._worst(start, end), end - start)

    def provisional(self, start: Seconds, end: Seconds) -> EnergyReading:
        """As ``window``, but the part of ``end`` that is not settled yet is told by the last power.

        All of that part is added to the error, and the source is never better than INTEGRATED. Raises SensorError
        where the tail is longer than MAX_TAIL or no power is known.
        """
        with self._settled():
            settled = self._settled_end(end)
            start_settled = min(start, settled)
            self._check(start_settled, settled)
            if end <= settled:
                return self.window(start, end)
            tail = self._tail(settled, end) - (self._tail(settled, start) if start > settled else 0.0)
            joules = max(0.0, tail) + (self._timeline.at(settled) - self._timeline.at(start_settled)) / NANOJOULES
            error = max(0.0, tail) + self._doubt(start_settled, settled) + self._relative_error * joules
            worst = self._worst(start_settled, settled) if start_settled < settled else self.source
            source = Source.INTEGRATED if worst is Source.COUNTER else worst
            return self._reading(joules, error, source, end - start)

    def provisional_nanojoules(self, at: Seconds) -> int:
        """E(at) with the same tail as ``provisional``: monotone in ``at`` between two samples."""
        with self._settled():
            settled = self._settled_end(at)
            if at <= settled:
                return self.nanojoules(at)
            return self._timeline.at(settled) + round(self._tail(settled, at) * NANOJOULES)

    def _settled_end(self, at: float) -> Seconds:
        span = self._timeline.span
        if span is None:
            raise SensorError(f"{_name(self.sensor)} has no energy yet.")
        if at > span[1] + MAX_TAIL:
            raise SensorError(f"{_name(self.sensor)} is settled until {span[1]:.3f} s only, not until {at:.3f} s.")
        return Seconds(min(at, span[1]))

    def _tail(self, settled: float, until: float) -> float:
        tail = self._rules.tail(until)
        if tail is not None:
            return tail
        watts, source = self._timeline.slope(settled)
        if source is None or len(self._timeline) < 2:
            raise SensorError(f"{_name(self.sensor)} has read no power since {settled:.3f} s.")
        return watts * (until - settled)

    def edge_error(self, start: Seconds, end: Seconds) -> Joules:
        """The part of a window's error that stems from its two ends: power x tick where a counter made them.

        It cancels between windows that share an end. Raises SensorError if the window is not covered.
        """
        with self._settled():
            self._check(start, end)
            return Joules(self._edges(start, end))

    def _doubt(self, start: float, end: float) -> float:
        return self._edges(start, end) + self._timeline.doubt_at(end) - self._timeline.doubt_at(start)

    def _edges(self, start: float, end: float) -> float:
        slopes = (self._timeline.slope(edge) for edge in (start, end))
        return math.fsum(watts * self._rules.tick for watts, source in slopes if source is self.source)

    def _worst(self, start: float, end: float) -> Source:
        found = self._timeline.sources(start, end)
        if None in found:
            raise SensorError(f"{_name(self.sensor)} lost samples between {start:.3f} s and {end:.3f} s.")
        return next((source for source in reversed(Source) if source in found), self.source)

    def _check(self, start: float, end: float) -> None:
        if end < start:
            raise SensorError(f"A window must not end ({end:.3f} s) before it starts ({start:.3f} s).")
        span = self._timeline.span
        if span is None or start < span[0] or end > span[1]:
            known = "nothing yet" if span is None else f"{span[0]:.3f} s to {span[1]:.3f} s"
            raise SensorError(f"{_name(self.sensor)} covers {known}, not {start:.3f} s to {end:.3f} s.")

    def _reading(self, joules: float, error: float, source: Source, window: float) -> EnergyReading:
        return EnergyReading(
            device=self.sensor.device,
            joules=Joules(joules),
            error=Joules(max(0.0, error)),
            scope=self.sensor.scope,
            source=source,
            window=Seconds(window),
        )


def _name(sensor: SensorId) -> str:
    return f"{sensor.device} ({sensor.scope})"

"""From raw samples to bookings: which joules may be believed, and from what.

A cumulative counter ticks coarsely, resets, glitches, sticks. ``SampleRules`` books a counter's *changes* and falls
back on integrated power where the counter cannot be trusted; where nothing can be known it books a gap. It knows one
sensor, no clock and no hardware, and never books a negative amount.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from energyopt.core.results import Source
from energyopt.core.units import Joules, Seconds, Watts

from .crosscheck import CrossCheck
from .ports import Sample

MARGIN = 1.5
"""A rise above this multiple of what the device can draw is not energy."""
UNBOUNDED_POWER = 10_000.0
"""Watts assumed possible where a sensor states no maximum: above every socket and board sold."""
DEFAULT_TICK = 0.1
"""Seconds between counter updates until three were seen; drivers document none, 20-100 ms is usual."""
MIN_TICK = 0.02
"""Floor of the inferred tick. An inferred 0 makes pollers spin (reference: ml-energy/zeus#261)."""
INTERVALS = 33
"""Intervals between updates whose median is the tick."""
STUCK_TICKS = 20
PATIENCE = (2.0, 30.0)
"""Bounds in seconds of how long a silent counter is waited for before power is integrated instead."""
STUCK_POWER = 1.0
"""Watts above which a counter that stands still is called stuck: 1 W moves every counter within a second."""
CONFIRMATIONS = 3
"""Samples, over at least two ticks, that must agree on a new level before it is taken for a reset."""
MAX_GAP = 10.0
"""Seconds between two power samples above which what lay between them is unknown."""


class Booking(NamedTuple):
    """``joules`` were spent from the booking before this one until ``until``.

    ``source`` None marks a gap: the energy is unknown, not 0. ``doubt`` is the half-width in joules of what this
    booking may be off by, apart from the error at a window's edges.
    """

    until: Seconds
    joules: Joules
    source: Source | None
    doubt: float = 0.0


@dataclass(slots=True)
class _Suspect:
    """A level of the counter that contradicts the last accepted one and waits to be confirmed or refuted."""

    since: float
    at: float
    value: float
    fell: bool
    samples: int = 1


class SampleRules:
    """Turns one sensor's samples into bookings, oldest first. The first booking only marks where the curve begins.

    ``source`` labels what the counter says; integrated spans are INTEGRATED unless the sensor is a model itself.
    ``counts`` tells what was refused or repaired: order, invalid_counter, invalid_power, backward, implausible,
    resets, rebases, stuck, wrong_rate.
    """

    def __init__(self, source: Source, max_power: Watts | None) -> None:
        self._source = source
        self._integral_source = Source.INTEGRATED if source is Source.COUNTER else source
        self._limit = MARGIN * (UNBOUNDED_POWER if max_power is None else max_power)
        self.counts: Counter[str] = Counter()
        self._last: float | None = None
        self._edge: float | None = None
        self._first_counter: float | None = None
        self._reference: float | None = None
        self._changed_at: float | None = None
        self._waiting_since: float | None = None
        self._slack = DEFAULT_TICK
        self._integrating = False
        self._suspect: _Suspect | None = None
        self._powers: list[tuple[float, float]] = []
        self._intervals: deque[float] = deque()
        self._ordered: list[float] = []
        self._tick = Seconds(DEFAULT_TICK)
        self._check = CrossCheck()

    @property
    def tick(self) -> Seconds:
        """Seconds between updates of the sensor as inferred so far."""
        return self._tick

    @property
    def crosscheck(self) -> float | None:
        """Counted over integrated energy where both were known of late; None before a joule of either."""
        return self._check.ratio

    @property
    def power(self) -> Watts | None:
        """The newest believable power since the last booking."""
        return Watts(self._powers[-1][1]) if self._powers else None

    def book(self, sample: Sample) -> list[Booking]:
        """Take in one sample; returns what it settles, which may be nothing yet."""
        at = float(sample.at)
        if not math.isfinite(at) or (self._last is not None and at <= self._last):
            self.counts["order"] += 1
            return []
        gap = DEFAULT_TICK if self._last is None else at - self._last
        counter, power = self._vetted(sample)
        if counter is None and power is None:
            return []
        self._last = at
        if self._waiting_since is None:
            self._waiting_since = at
        if power is not None:
            self._powers.append((at, power))
        booked = self._judge(at, counter, gap) if counter is not None else []
        return booked or self._integrate_when_due(at)

    def tail(self, until: float) -> float | None:
        """Joules from the last booking to ``until`` by the power read since, its last value held; None without any."""
        if not self._powers or self._edge is None:
            return None
        held = [(self._edge, self._powers[0][1]), *self._powers, (max(until, self._powers[-1][0]), self._powers[-1][1])]
        joules = math.fsum(_trapezoid(a, b) for a, b in pairwise(held))
        overshoot = max(0.0, self._powers[-1][0] - until) * self._powers[-1][1]
        return max(0.0, joules - overshoot)

    def _vetted(self, sample: Sample) -> tuple[float | None, float | None]:
        counter, power = sample.counter, sample.power
        if counter is not None and not (math.isfinite(counter) and counter >= 0):
            self.counts["invalid_counter"] += 1
            counter = None
        if power is not None and not 0 <= power <= self._limit:
            self.counts["invalid_power"] += 1
            power = None
        return counter, power

    def _judge(self, at: float, counter: float, gap: float) -> list[Booking]:
        """Accept a change, ignore a repetition, or hold a contradiction."""
        if self._reference is None:
            return self._anchor(at, counter, gap)
        delta = counter - self._reference
        if delta == 0:
            self._suspect = None
            return []
        if self._plausible(delta, at):
            booked = self._book_change(at, delta)
            self._accept(at, counter, gap)
            return booked
        return self._doubt(at, counter, gap)

    def _anchor(self, at: float, counter: float, gap: float) -> list[Booking]:
        """The curve begins at the first change: before it, the age of the counter's value is unknown."""
        if self._first_counter is None:
            self._first_counter = counter
            return []
        if counter == self._first_counter:
            return []
        booked = self._integral(at) if self._edge is not None else [Booking(Seconds(at), Joules(0.0), self._source)]
        self._accept(at, counter, gap)
        return booked

    def _plausible(self, delta: float, at: float) -> bool:
        """The counter's value may be older than its sample by the gap before it, and a tick."""
        since = at - self._changed_at if self._changed_at is not None else 0.0
        return 0 < delta <= self._limit * (since + self._slack + self._tick)

    def _book_change(self, at: float, delta: float) -> list[Booking]:
        if self._integrating:
            # Power has booked part of this change already; from here on the counter is trusted again.
            return self._integral(at)
        if len(self._powers) > 1 and self._powers[0][0] == self._edge:
            integrated = sum(map(_trapezoid, self._powers, self._powers[1:]))
            if self._check.add(delta, integrated, at - self._edge):
                self.counts["wrong_rate"] += 1
            if self._check.distrusted:
                return self._integral(at)
        return [Booking(Seconds(at), Joules(delta), self._source)]

    def _accept(self, at: float, counter: float, gap: float) -> None:
        if self._changed_at is not None:
            self._learn_tick(at - self._changed_at)
        self._reference, self._changed_at, self._waiting_since, self._edge = counter, at, at, at
        self._slack, self._suspect, self._integrating = gap, None, False
        self._powers = [entry for entry in self._powers[-1:] if entry[0] == at]

    def _learn_tick(self, interval: float) -> None:
        """Take in the time between two updates. The median is kept, since the tick is asked at every sample."""
        intervals, ordered = self._intervals, self._ordered
        intervals.append(interval)
        insort(ordered, interval)
        if len(intervals) > INTERVALS:
            del ordered[bisect_left(ordered, intervals.popleft())]
        if len(intervals) >= 3:
            self._tick = Seconds(max(MIN_TICK, ordered[len(ordered) // 2]))

    def _doubt(self, at: float, counter: float, gap: float) -> list[Booking]:
        """Hold a fall or an impossible rise until it is confirmed (the counter restarted) or refuted (a glitch)."""
        fell = self._reference is not None and counter < self._reference
        self.counts["backward" if fell else "implausible"] += 1
        suspect = self._suspect
        allowed = 0.0 if suspect is None else self._limit * (at - suspect.at + self._slack + self.tick)
        if suspect is None or suspect.fell != fell or not 0 <= counter - suspect.value <= allowed:
            self._suspect = _Suspect(since=at, at=at, value=counter, fell=fell)
            return []
        suspect.at, suspect.value, suspect.samples = at, counter, suspect.samples + 1
        if suspect.samples < CONFIRMATIONS or at - suspect.since < 2 * self.tick:
            return []
        self.counts["resets" if fell else "rebases"] += 1
        booked = self._bridge(at, counter if fell else None)
        self._changed_at = None  # the time since the old level says nothing about the tick
        self._accept(at, counter, gap)
        return booked

    def _bridge(self, at: float, restarted: float | None) -> list[Booking]:
        """From the last booking to a new level: integrated power, else the restarted counter, else a gap."""
        if self._powers or self._edge is None:
            return self._integral(at)
        reach = self._limit * (at - self._edge)
        if restarted is None or restarted > reach:
            return [Booking(Seconds(at), Joules(0.0), None)]
        # What was drawn between the last sample and the reset is lost: at most what the device can draw.
        return [Booking(Seconds(at), Joules(restarted), self._source, doubt=reach / MARGIN)]

    def _integrate_when_due(self, at: float) -> list[Booking]:
        """Stop waiting for a counter that is silent for too long, if power is known."""
        expects_counter = self._source is Source.COUNTER or self._first_counter is not None
        waited = at - (self._waiting_since or at)
        if expects_counter and not self._integrating and waited < self._patience:
            return []
        if not self._powers:
            return []
        if expects_counter and not self._integrating and self._powers[-1][1] > STUCK_POWER:
            self.counts["stuck"] += 1
        self._integrating = True
        return self._integral(self._powers[-1][0])

    @property
    def _patience(self) -> float:
        low, high = PATIENCE
        return min(high, max(low, STUCK_TICKS * self.tick))

    def _integral(self, at: float) -> list[Booking]:
        """Bookings by the trapezoid rule over the power read since the last one, edges held."""
        if not self._powers:
            return [Booking(Seconds(at), Joules(0.0), None)] if self._edge is not None else []
        points = list(self._powers)
        booked: list[Booking] = []
        if self._edge is None:
            booked.append(Booking(Seconds(points[0][0]), Joules(0.0), self._integral_source))
        elif points[0][0] > self._edge:
            points.insert(0, (self._edge, points[0][1]))
        if points[-1][0] < at:
            points.append((at, points[-1][1]))
        booked += [self._segment(a, b) for a, b in pairwise(points)]
        if self._first_counter is None:
            for a, b in pairwise(points):
                self._learn_tick(b[0] - a[0])
        self._edge = points[-1][0]
        self._powers = points[-1:]
        return booked

    def _segment(self, a: tuple[float, float], b: tuple[float, float]) -> Booking:
        if b[0] - a[0] > MAX_GAP:
            return Booking(Seconds(b[0]), Joules(0.0), None)
        # The change of power may have come at any instant between the two samples.
        doubt = abs(b[1] - a[1]) * (b[0] - a[0]) / 2
        return Booking(Seconds(b[0]), Joules(_trapezoid(a, b)), self._integral_source, doubt)


def _trapezoid(a: Sequence[float], b: Sequence[float]) -> float:
    return (b[0] - a[0]) * (a[1] + b[1]) / 2

"""When sessions arrive in an open loop: Poisson, gamma (burstier or smoother) and bursts, from a seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Protocol

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds


class Arrivals(Protocol):
    """A process in time: ``times`` draws the first ``count`` arrivals, ascending, from 0 on."""

    def times(self, count: int, rng: random.Random) -> list[Seconds]: ...


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Independent gaps with mean 1/``rate`` and coefficient of variation ``cv``; 1 is Poisson, 0 is a metronome.

    ``rate`` is in sessions per second.
    """

    rate: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.rate < 1e9 and 0 <= self.cv <= 100):
            raise ConfigError(f"Arrivals need 0 < rate < 1e9 and 0 <= cv <= 100; got rate {self.rate}, cv {self.cv}.")

    def times(self, count: int, rng: random.Random) -> list[Seconds]:
        clock, found = 0.0, []
        for _ in range(count):
            clock += self._gap(rng)
            found.append(Seconds(clock))
        return found

    def _gap(self, rng: random.Random) -> float:
        if self.cv == 0:
            return 1 / self.rate
        shape = 1 / self.cv**2
        return rng.gammavariate(shape, 1 / (self.rate * shape))


@dataclass(frozen=True, slots=True)
class BurstArrivals:
    """Groups of ``size`` at once, groups Poisson, ``rate`` sessions per second over all."""

    rate: float
    size: int

    def __post_init__(self) -> None:
        if not (0 < self.rate < 1e9 and self.size >= 1):
            raise ConfigError(f"Bursts need 0 < rate < 1e9 and size >= 1; got rate {self.rate}, size {self.size}.")

    def times(self, count: int, rng: random.Random) -> list[Seconds]:
        clock, found = 0.0, list[Seconds]()
        while len(found) < count:
            clock += rng.expovariate(self.rate / self.size)
            found += [Seconds(clock)] * self.size
        return found[:count]


_FORM = re.compile(r"(poisson|gamma|burst|constant):([0-9.]+)(?:,([0-9.]+))?")


def parse_arrivals(text: str) -> Arrivals:
    """``poisson:4``, ``gamma:4,2`` (rate, cv), ``burst:4,8`` (rate, size), ``constant:4``. Raises ConfigError."""
    match = _FORM.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        kind, rate = match.group(1), float(match.group(2))
        second = None if match.group(3) is None else float(match.group(3))
        if (second is None) != (kind in ("poisson", "constant")):
            raise ValueError(text)
    except ValueError as error:
        allowed = "poisson:RATE, constant:RATE, gamma:RATE,CV or burst:RATE,SIZE"
        raise ConfigError(
            f"{text!r} is not an arrival process: expected {allowed} with sessions per second."
        ) from error
    if kind == "burst":
        return BurstArrivals(rate, int(second or 0))
    return GammaArrivals(rate, {"poisson": 1.0, "constant": 0.0}.get(kind, second or 0.0))

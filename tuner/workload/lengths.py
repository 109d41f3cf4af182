"""Distributions of lengths in tokens, and their text form."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Protocol

from energyopt.core.errors import ConfigError

from .rows import MAX_TOKENS


class Drawn(Protocol):
    """Anything that draws lengths."""

    def draw(self, rng: random.Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal length with bounds: ``median``, ``spread`` (sigma of the logarithm), clipped to [low, high]."""

    median: int
    spread: float
    low: int
    high: int

    def __post_init__(self) -> None:
        if not (1 <= self.low <= self.median <= self.high and self.spread >= 0):
            raise ConfigError(
                f"Lengths need 1 <= low <= median <= high and spread >= 0; got low {self.low}, median {self.median}, "
                f"high {self.high}, spread {self.spread}."
            )

    def draw(self, rng: random.Random) -> int:
        drawn = round(self.median * math.exp(rng.gauss(0.0, self.spread)))
        return min(self.high, max(self.low, drawn))


@dataclass(frozen=True, slots=True)
class UniformLength:
    """Every length from ``low`` to ``high`` equally often; equal bounds make it fixed."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MAX_TOKENS:
            raise ConfigError(f"Lengths need 1 <= low <= high <= {MAX_TOKENS}; got {self.low} to {self.high}.")

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


_FORM = re.compile(r"([0-9]{1,10})(?:(\.\.|~)([0-9.]{1,10}))?")


def parse_length(text: str) -> Drawn:
    """``256`` fixed, ``100..400`` uniform, ``200~0.6`` log-normal (median, sigma of the logarithm). ConfigError."""
    match = _FORM.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        first, kind, second = int(match.group(1)), match.group(2), match.group(3)
        if kind == "~":
            return Lengths(first, float(second), 1, max(first, MAX_TOKENS))
        return UniformLength(first, int(second) if kind else first)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a length: expected 256, 100..400 or 200~0.6 (median~spread).") from error

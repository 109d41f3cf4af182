"""The search space of one host: the knobs that matter there and the values worth trying.

Knows rules of thumb about knobs; asks nothing of the machine: what the devices allow is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError
from energyopt.core.study import Knob, Space, Value
from energyopt.core.units import Hertz, Watts, hertz_from_megahertz, megahertz

POWER_STEPS = (0.55, 0.7, 0.85)
"""Caps as shares of the default limit: below half, decode slows faster than it saves."""

CLOCK_STEPS = (0.45, 0.6, 0.75, 0.9)
"""Clocks as shares of the fastest one."""


@dataclass(frozen=True, slots=True)
class PowerRange:
    """What a device's power limit may be set to, and what it is by default."""

    low: Watts
    high: Watts
    default: Watts

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.default <= self.high:
            raise ConfigError(
                f"A power range needs 0 < low <= default <= high; got {self.low:g}, {self.default:g}, {self.high:g} W."
            )


def host_space(
    baseline: Deployment,
    cores: int,
    *,
    concurrency: int | None = None,
    power: PowerRange | None = None,
    max_clock: Hertz | None = None,
    quick: bool = False,
) -> Space:
    """The space of a one-host study around ``baseline``, knobs in the order of their expected effect.

    ``power`` and ``max_clock`` are given only where caps and clock ceilings may be set; ``concurrency`` is how many
    requests can be underway at once, beyond which more sequences change nothing. ``quick`` is the small space for a
    short study.
    """
    engine = baseline.decode.engine
    knobs = [
        _optional("decode.power.cap", _caps(power, quick), baseline.decode.power.cap),
        _optional("decode.power.sm_clock", _clocks(max_clock, quick), baseline.decode.power.sm_clock),
        _numbers("decode.engine.max_num_seqs", _sequences(concurrency, quick), engine.max_num_seqs),
        _optional("decode.engine.threads", _threads(cores, quick), engine.threads),
        _numbers(
            "decode.engine.max_num_batched_tokens",
            (128, 512, 2048) if quick else (64, 128, 256, 512, 1024, 2048, 4096),
            engine.max_num_batched_tokens,
        ),
        Knob(path="decode.engine.kv.prefix_caching", values=(False, True), ordinal=False),
        _numbers("decode.engine.kv.block_tokens", (16, 64) if quick else (8, 16, 32, 64), engine.kv.block_tokens),
    ]
    return Space(knobs=tuple(knob for knob in knobs if len(knob.values) > 1))


def _sequences(concurrency: int | None, quick: bool) -> list[int]:
    """Powers of two up to the first that holds every request underway; every second one where time is short."""
    top = concurrency or 256
    values = [1]
    while values[-1] < top:
        values.append(values[-1] * 2)
    return values[-1::-2][:3] if quick else values


def _threads(cores: int, quick: bool) -> list[int]:
    """Fewer threads than cores; every core is None."""
    if cores < 1:
        raise ConfigError(f"cores {cores} must be >= 1.")
    shares = (0.5,) if quick else (0.25, 0.5, 0.75)
    return [count for count in (round(cores * share) for share in shares) if 1 <= count < cores]


def _caps(power: PowerRange | None, quick: bool) -> list[Watts]:
    if power is None:
        return []
    steps = POWER_STEPS[1:2] if quick else POWER_STEPS
    caps = (Watts(float(round(power.default * step))) for step in steps)
    return [cap for cap in caps if power.low <= cap < power.default]


def _clocks(top: Hertz | None, quick: bool) -> list[Hertz]:
    """Ceilings below the fastest clock, in whole megahertz; a driver takes any and rounds to its own steps."""
    if top is None:
        return []
    steps = CLOCK_STEPS[1:2] if quick else CLOCK_STEPS
    return [hertz_from_megahertz(megahertz(Hertz(top * step))) for step in steps]


def _numbers(path: str, values: Iterable[int], baseline: int) -> Knob:
    return Knob(path=path, values=tuple(sorted({*values, baseline})))


def _optional(path: str, values: Iterable[float], baseline: float | None) -> Knob:
    """Values in order, with None (unlimited) at the top."""
    known = {*values, *(() if baseline is None else (baseline,))}
    ordered: tuple[Value, ...] = (*sorted(known), None)
    return Knob(path=path, values=ordered)

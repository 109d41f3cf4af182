"""How much a recommendation hangs on what nobody has verified: each such value off by a fifth, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from energyopt.core.errors import ConfigError

from .hardware import Gpu
from .planner import Planner
from .plans import Plan

FACTORS = (0.8, 1.25)
"""A fifth less, and the same upwards."""
ASSUMED = ("clock.v_min", "clock.knee", "clock.memory_share", "power.link_byte")
"""Constants without an open measurement on a data-centre GPU."""
CARRIED = ("time.memory", "time.compute", "power.busy", "power.byte", "power.flop")
"""Constants that are a guess too where the set was carried over from another GPU."""


@dataclass(frozen=True, slots=True)
class Influence:
    """One unverified value: the relative change of tokens per joule at each factor (None: no such machine), and
    whether the plan would miss an SLO or another plan of the front would be better.
    """

    name: str
    why: str
    changes: tuple[float | None, ...]
    misses: bool
    overtaken: bool

    @property
    def size(self) -> float:
        return max((abs(change) for change in self.changes if change is not None), default=0.0)


def sensitivity(planner: Planner, chosen: Plan, front: Sequence[Plan]) -> list[Influence]:
    """The influence of every unverified fact and constant on ``chosen``, largest first; those without any left out."""
    found = [_influence(planner, chosen, front, name, why) for name, why in _unverified(planner)]
    return sorted((one for one in found if one.size > 1e-4 or one.misses), key=lambda one: -one.size)


def _unverified(planner: Planner) -> Iterator[tuple[str, str]]:
    for name in planner.gpu.unverified:
        yield name, planner.gpu.facts[name].kind
    for name in ASSUMED:
        yield name, "no open measurement"
    if planner.constants.origin == "prior":
        for name in CARRIED:
            yield name, "carried over"


def _influence(planner: Planner, chosen: Plan, front: Sequence[Plan], name: str, why: str) -> Influence:
    changes: list[float | None] = []
    misses = overtaken = False
    for factor in FACTORS:
        other = _changed(planner, name, factor)
        try:
            plans = [other.reprice(plan) for plan in (chosen, *front)] if other is not None else []
        except ConfigError:  # a limit of the plan lies outside the changed device's range
            plans = []
        if not plans:
            changes.append(None)
            continue
        changes.append(plans[0].tokens_per_joule / chosen.tokens_per_joule - 1)
        misses |= not plans[0].feasible
        rivals = [plan.tokens_per_joule for plan in plans[1:] if plan.feasible]
        overtaken |= max(rivals, default=0.0) > plans[0].tokens_per_joule * (1 + 1e-9)
    return Influence(name, why, tuple(changes), misses, overtaken)


def _changed(planner: Planner, name: str, factor: float) -> Planner | None:
    """The same planner with one value changed; None where the value cannot be."""
    gpu, constants = planner.gpu, planner.constants
    if "." not in name:
        return planner.on(_with_fact(gpu, name, factor), constants)
    group, _, key = name.partition(".")
    held = getattr(constants, group)
    value = getattr(held, key) * factor
    if key in ("v_min", "knee") and value >= 1.0:
        return None
    return planner.on(gpu, constants.model_copy(update={group: held.model_copy(update={key: value})}))


def _with_fact(gpu: Gpu, name: str, factor: float) -> Gpu:
    fact = gpu.facts[name]
    scaled = fact.model_copy(update={"value": fact.value * factor})
    return gpu.model_copy(update={"facts": {**gpu.facts, name: scaled}})

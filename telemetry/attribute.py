"""Who used the energy: slices a sensor's curve by step records, losing and inventing nothing.

Energy is cut in whole nanojoules by the largest remainder, so the parts of a window add up to the sensor's energy
exactly. Time without a step is idle; a step that computed for no request is overhead; steps that overlap on one
sensor share the overlap equally.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.results import EnergySplit, Scope
from energyopt.core.units import Joules, Seconds

from .ports import SensorId
from .timeline import NANOJOULES

CONTEXT_SCALE = 4096.0
"""Context tokens at which attending costs as much as the rest of a token's work.

Per token and layer, projections and MLP cost about 24 d^2 FLOP and attention 4 c d with model width d and context c
(Kaplan et al. 2020, arXiv 2001.08361, table 1, doubled for multiply-add): equal at c = 6 d. Widths of 576 to 4096
give 3.5k to 25k; memory traffic for the KV cache moves the point down. A fitted model replaces this constant.
"""

WEIGHT_UNITS = 1 << 50
"""Weights become whole numbers of this resolution, so that the division is exact integer arithmetic."""

EnergyAt = Callable[[Seconds], int]
"""E(t) of one sensor in nanojoules: monotone over the window asked for."""


class WeighShare(Protocol):
    """How much of a step a share is answerable for; any unit, >= 0."""

    def __call__(self, share: StepShare) -> float: ...


class ComputeWeight:
    """Weight by work: computed tokens x (1 + mean context / CONTEXT_SCALE), for prefill and decode alike."""

    def __init__(self, context_scale: float = CONTEXT_SCALE) -> None:
        self._scale = context_scale

    def __call__(self, share: StepShare) -> float:
        # A chunk's tokens see the context before them and, on average, half of the chunk itself.
        context = share.context_tokens + share.computed_tokens / 2
        return share.computed_tokens * (1 + context / self._scale)


@dataclass(slots=True)
class Attribution:
    """Nanojoules by purpose. ``requests`` is keyed by request id and phase."""

    idle: int = 0
    overhead: int = 0
    requests: dict[tuple[str, Phase], int] = field(default_factory=lambda: defaultdict(int))

    @property
    def total(self) -> int:
        return self.idle + self.overhead + sum(self.requests.values())

    def phase(self, phase: Phase) -> int:
        return sum(amount for (_, of), amount in self.requests.items() if of is phase)

    def add(self, other: Attribution) -> None:
        self.idle += other.idle
        self.overhead += other.overhead
        for key, amount in other.requests.items():
            self.requests[key] += amount

    def split(self) -> EnergySplit:
        """As joules, without the requests."""
        return EnergySplit(
            prefill=Joules(self.phase(Phase.PREFILL) / NANOJOULES),
            decode=Joules(self.phase(Phase.DECODE) / NANOJOULES),
            idle=Joules(self.idle / NANOJOULES),
            overhead=Joules(self.overhead / NANOJOULES),
        )


def runs_on(step: StepRecord, sensor: SensorId) -> bool:
    """True if the step's work is in the sensor's joules.

    A GPU is named by its UUID. A CPU sensor (package or DRAM) covers every step on the CPU: the threads of one step
    run on all packages of the host.
    """
    if sensor.scope in (Scope.CPU_PACKAGE, Scope.DRAM):
        return any(device.startswith("cpu") for device in step.devices)
    return sensor.device in step.devices


def attribute(
    energy_at: EnergyAt, steps: Sequence[StepRecord], start: Seconds, end: Seconds, weigh: WeighShare
) -> Attribution:
    """Divide E(end) - E(start) over the steps, in any order, that ran on the sensor in that time."""
    result = Attribution()
    inside = [step for step in steps if step.end > start and step.start < end and step.end > step.start]
    cuts = sorted({start, end, *(min(end, max(start, edge)) for step in inside for edge in (step.start, step.end))})
    spent = [0] * len(inside)
    order = sorted(range(len(inside)), key=lambda index: inside[index].start)
    active: list[int] = []
    upcoming = 0
    for left, right in pairwise(cuts):
        while upcoming < len(order) and inside[order[upcoming]].start <= left:
            active.append(order[upcoming])
            upcoming += 1
        active = [index for index in active if inside[index].end > left]
        amount = energy_at(right) - energy_at(left)
        if not active:
            result.idle += amount
        for index, part in zip(active, divide(amount, [1.0] * len(active)), strict=True):
            spent[index] += part
    for step, amount in zip(inside, spent, strict=True):
        _charge(result, step, amount, weigh)
    return result


def _charge(result: Attribution, step: StepRecord, amount: int, weigh: WeighShare) -> None:
    if not step.shares:
        result.overhead += amount
        return
    weights = [max(0.0, weigh(share)) for share in step.shares]
    for share, part in zip(step.shares, divide(amount, weights), strict=True):
        result.requests[share.request_id, share.phase] += part


def divide(amount: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of ``amount`` >= 0 in proportion to ``weights``, by largest remainder: they sum to it exactly.

    Weights that are all 0 count as equal; without weights there are no parts.
    """
    if len(weights) < 2:
        return [amount] * len(weights)
    total = sum(weights)
    if total <= 0:
        return divide(amount, [1.0] * len(weights))
    whole = [int(weight / total * WEIGHT_UNITS) for weight in weights]
    unit = sum(whole)
    if not unit:
        return divide(amount, [1.0] * len(weights))
    parts, rests = [], []
    for weight in whole:
        part, rest = divmod(amount * weight, unit)
        parts.append(part)
        rests.append(rest)
    for index in sorted(range(len(parts)), key=rests.__getitem__, reverse=True)[: amount - sum(parts)]:
        parts[index] += 1
    return parts

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

from energyopt.core.records import Phase, StepRecord
from energyopt.core.results import EnergySplit, Scope
from energyopt.core.units import Joules, Seconds

from .divide import divide
from .ports import SensorId
from .timeline import NANOJOULES
from .weigh import Weigh

EnergyAt = Callable[[Seconds], int]
"""E(t) of one sensor in nanojoules: monotone over the window asked for."""


@dataclass(slots=True)
class Attribution:
    """Nanojoules by purpose. ``requests`` is keyed by request id and phase.

    ``tiers`` divides the same joules of requests once more: by "computed" and the cache tiers tokens came from.
    """

    idle: int = 0
    overhead: int = 0
    requests: dict[tuple[str, Phase], int] = field(default_factory=lambda: defaultdict(int))
    tiers: dict[str, int] = field(default_factory=lambda: defaultdict(int))

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
        for tier, amount in other.tiers.items():
            self.tiers[tier] += amount

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
    energy_at: EnergyAt, steps: Sequence[StepRecord], start: Seconds, end: Seconds, weigh: Weigh
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


def _charge(result: Attribution, step: StepRecord, amount: int, weigh: Weigh) -> None:
    if not step.shares:
        result.overhead += amount
        return
    shares, requests, tiers = step.shares, result.requests, result.tiers
    parts = weigh(shares)
    weights = [weight if weight > 0.0 else 0.0 for _, _, weight in parts]
    for (position, tier, _), piece in zip(parts, divide(amount, weights), strict=True):
        share = shares[position]
        requests[share.request_id, share.phase] += piece
        tiers[tier] += piece

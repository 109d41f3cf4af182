"""Deployments as data: pools, a screened plan with its figures, and all that a screening found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from energyopt.core.config import ParallelLayout, PowerConfig

from ..layouts import Enumeration


@dataclass(frozen=True, slots=True)
class Pool:
    """``replicas`` equal engines; ``batch`` is per attention replica, 1 in a prefill pool."""

    layout: ParallelLayout
    power: PowerConfig
    replicas: int
    batch: int

    @property
    def devices(self) -> int:
        return self.replicas * self.layout.devices


@dataclass(frozen=True, slots=True)
class Plan:
    """One screened deployment. Rates are tokens per second of the whole fleet, watts of the whole budget.

    ``violations`` are relative, by SLO; all at most 0 (with the margin) make it feasible.
    """

    decode: Pool
    prefill: Pool | None
    devices: int
    rate: float
    watts: float
    ttft: float
    tpot: float
    violations: Mapping[str, float]
    provisioned: float | None

    @property
    def user_rate(self) -> float:
        return 1.0 / self.tpot

    @property
    def device_rate(self) -> float:
        """Per GPU of the budget: idle ones count."""
        return self.rate / self.devices

    @property
    def tokens_per_joule(self) -> float:
        return self.rate / self.watts

    @property
    def rate_per_megawatt(self) -> float | None:
        """Tokens per second per provisioned megawatt; None where nobody published what a GPU takes all in."""
        return None if self.provisioned is None else self.rate / (self.devices * self.provisioned) * 1e6

    @property
    def worst(self) -> float:
        return max(self.violations.values(), default=-1.0)

    @property
    def feasible(self) -> bool:
        return self.worst <= 0.0


@dataclass(frozen=True, slots=True)
class Screening:
    """All that was priced: the Pareto front of what keeps the SLOs, the nearest misses, and what rules removed."""

    layouts: Enumeration
    priced: int
    feasible: int
    front: tuple[Plan, ...]
    nearest: tuple[Plan, ...]
    removed: Mapping[str, int]

    @property
    def best(self) -> Plan | None:
        """Most tokens per joule among the feasible."""
        return max(self.front, key=lambda plan: plan.tokens_per_joule, default=None)

"""How the energy of one step is divided over the requests in it: the seam, and the rule that needs no measurement.

A step's joules are known from the sensor; only their division is a judgement. ``method`` names the judgement wherever
its joules are shown. The fitted rule is in ``cost_model``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from energyopt.core.records import StepRecord, StepShare

COMPUTED = "computed"
"""What tokens that a model computed are booked under, beside the cache tiers that tokens were loaded from."""

CONTEXT_SCALE = 4096.0
"""Context tokens at which attending costs as much as the rest of a token's work.

Per token and layer, projections and MLP cost about 24 d^2 FLOP and attention 4 c d with model width d and context c
(Kaplan et al. 2020, arXiv 2001.08361, table 1, doubled for multiply-add): equal at c = 6 d. Widths of 576 to 4096
give 3.5k to 25k; memory traffic for the KV cache moves the point down. The fitted model replaces this constant.
"""


class Part(NamedTuple):
    """A piece of a step: which share (by position) it belongs to, what it was for, and how much it weighs (>= 0)."""

    position: int
    tier: str
    weight: float


@dataclass(frozen=True, slots=True)
class FitReport:
    """How well the fitted model tells the steps.

    ``error`` is that of predictions made before each step was learned: sum of |predicted - measured| over sum of
    measured, over the steps that the model remembers; None before any. ``seconds`` is by term.
    """

    trusted: bool
    steps: int
    prefill_steps: int
    error: float | None
    seconds: dict[str, float]

    @property
    def sentence(self) -> str:
        """For reports: by which rule a step is divided now, and how good the fit is."""
        error = "unknown" if self.error is None else f"{self.error:.0%}"
        learned = f"{self.steps:,} steps, {self.prefill_steps:,} of them with prefill, error {error}"
        if self.trusted:
            return f"Energy within a step is divided by a cost model fitted to the steps ({learned})."
        rule = "tokens and context; the fitted cost model is not used yet"
        return f"Energy within a step is divided by {rule} ({learned})."


class Weigh(Protocol):
    """Weights of the shares of a step, in any unit. Thread-safe: an account may weigh while steps are observed."""

    @property
    def method(self) -> str:
        """The name of the rule that ``__call__`` follows now; lower case with underscores, of a small fixed set."""
        ...

    def observe(self, step: StepRecord) -> None:
        """Learn from a finished step, or do nothing."""
        ...

    def report(self) -> FitReport | None:
        """What was learned so far; None for a rule that learns nothing."""
        ...

    def __call__(self, shares: Sequence[StepShare]) -> list[Part]:
        """At least one part for each share, in their order."""
        ...


class ComputeWeight:
    """Weight by work: computed tokens x (1 + mean context / CONTEXT_SCALE), for prefill and decode alike.

    What was loaded from a cache tier weighs nothing here.
    """

    method = "compute_weight"

    def __init__(self, context_scale: float = CONTEXT_SCALE) -> None:
        self._scale = context_scale

    def observe(self, step: StepRecord) -> None:
        """Nothing to learn."""

    def report(self) -> FitReport | None:
        return None

    def of(self, share: StepShare) -> float:
        """The weight of one share."""
        return share.computed_tokens * (1 + mean_context(share) / self._scale)

    def __call__(self, shares: Sequence[StepShare]) -> list[Part]:
        return [Part(index, COMPUTED, self.of(share)) for index, share in enumerate(shares)]


def mean_context(share: StepShare) -> float:
    """Tokens that a computed token of the share attends to: what stood before, and on average half of the chunk."""
    return share.context_tokens + share.computed_tokens / 2

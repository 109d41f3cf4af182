"""Where a search should begin: points of its space that the simulator likes, each of another kind.

Only knobs that the simulator knows are moved; the others stay at the baseline's value. A point must keep every SLO
with a margin, because a prediction errs. What it predicts is kept beside what is measured later, never instead of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from energyopt.core.config import Deployment
from energyopt.core.errors import TrialError
from energyopt.core.results import RunResult

from ..space import Params, SearchSpace

KNOWN = ("max_num_seqs", "max_num_batched_tokens", "kv.", "layout.", "power.")
"""Parts of the paths of knobs whose effect is simulated."""
MARGIN = 0.05
"""By so much a predicted latency must keep its target."""
MOST = 48
"""Points that are simulated; more are drawn from at random."""
APART = 2
"""Knobs in which two candidates should differ."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point worth measuring early, with its simulated run."""

    params: Params
    deployment: Deployment
    predicted: RunResult


def candidates(
    space: SearchSpace,
    simulate: Callable[[Deployment], RunResult],
    worth: Callable[[RunResult], float | None],
    *,
    count: int = 8,
    seed: int = 0,
) -> list[Candidate]:
    """Up to ``count`` points, the most promising first; none is the baseline. Points that fail are left out."""
    points = list(_movable(space))
    if len(points) > MOST:
        points = random.Random(f"{seed}/prior").sample(points, MOST)
    rated: list[tuple[float, Candidate]] = []
    for params in points:
        deployment = space.apply(params)
        try:
            result = simulate(deployment)
        except TrialError:
            continue
        value = worth(result)
        if value is not None and _keeps(result):
            rated.append((value, Candidate(params, deployment, result)))
    ranked = [candidate for _, candidate in sorted(rated, key=lambda pair: -pair[0])]
    return _diverse(space, ranked, count)


def _movable(space: SearchSpace) -> Iterator[Params]:
    """Valid points that differ from the baseline, and only in knobs that are simulated."""
    baseline = space.baseline_params
    fixed = [knob.path for knob in space.knobs if not any(part in knob.path for part in KNOWN)]
    for params in space.plan.points:
        if params != baseline and all(params[path] == baseline[path] for path in fixed):
            yield params


def _keeps(result: RunResult) -> bool:
    return all(verdict.violation is not None and verdict.violation <= -MARGIN for verdict in result.verdicts)


def _diverse(space: SearchSpace, ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    """In order of rank, those first that differ from all before in ``APART`` knobs."""
    chosen: list[Candidate] = []
    for apart in range(APART, 0, -1):
        for candidate in ranked:
            if len(chosen) == count:
                return chosen
            if all(_distance(space, candidate, other) >= apart for other in chosen):
                chosen.append(candidate)
    return chosen


def _distance(space: SearchSpace, one: Candidate, other: Candidate) -> int:
    return sum(a != b for a, b in zip(space.index(one.params), space.index(other.params), strict=True))

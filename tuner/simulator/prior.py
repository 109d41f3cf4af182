"""Where a search should begin: points of its space that the simulator likes, each of another kind.

Only knobs that the simulator knows are moved; the others stay at the baseline's value. A point must keep every SLO
with a margin, because a prediction errs. What it predicts is kept beside what is measured later, never instead of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from energyopt.core.config import Deployment
from energyopt.core.errors import TrialError
from energyopt.core.results import RunResult

from ..space import Params, SearchSpace

KNOWN = ("max_num_seqs", "max_num_batched_tokens", "kv.", "layout", "power.")
"""Parts of the paths of knobs whose effect is simulated."""
MARGIN = 0.05
"""By so much a predicted latency must keep its target."""
MOST = 48
"""Points that are simulated: half of them drawn at random, the others next to the best that were found."""
TOPOLOGY = ("layout", "replicas")
"""Parts of the paths of knobs that are a deployment's topology."""
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
    ranked = _Rated(space, simulate, worth).explore(random.Random(f"{seed}/prior"))
    return _diverse(space, ranked, count)


class _Rated:
    """Points that were simulated; those that keep the SLOs with their worth."""

    def __init__(
        self,
        space: SearchSpace,
        simulate: Callable[[Deployment], RunResult],
        worth: Callable[[RunResult], float | None],
    ) -> None:
        self._space, self._simulate, self._worth = space, simulate, worth
        self._kept: list[tuple[float, Candidate]] = []
        self._asked: set[tuple[int, ...]] = set()

    def explore(self, rng: random.Random) -> list[Candidate]:
        """Everything where that is little; else a random half, then step by step the neighbours of the best."""
        points = {self._space.index(params): params for params in _movable(self._space)}
        if len(points) <= MOST:
            for params in points.values():
                self._rate(params)
            return self._ranked()
        for index in _stratified(points, rng)[: MOST // 2]:
            self._rate(points[index])
        while len(self._asked) < MOST:
            fresh = next((i for i in self._around(rng) if i in points and i not in self._asked), None)
            if fresh is None:
                fresh = next(i for i in rng.sample(list(points), MOST) if i not in self._asked)
            self._rate(points[fresh])
        return self._ranked()

    def _around(self, rng: random.Random) -> Iterator[tuple[int, ...]]:
        """Points one step of one knob away from the best ones, the best's neighbours first."""
        for candidate in self._ranked():
            index = self._space.index(candidate.params)
            steps = [(*index[:k], index[k] + step, *index[k + 1 :]) for k in range(len(index)) for step in (-1, 1)]
            yield from rng.sample(steps, len(steps))

    def _rate(self, params: Params) -> None:
        self._asked.add(self._space.index(params))
        deployment = self._space.apply(params)
        try:
            result = self._simulate(deployment)
        except TrialError:
            return
        value = self._worth(result)
        if value is not None and _keeps(result):
            self._kept.append((value, Candidate(params, deployment, result)))

    def _ranked(self) -> list[Candidate]:
        return [candidate for _, candidate in sorted(self._kept, key=lambda pair: -pair[0])]


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
    """The best, the best of each other topology, then by rank those that differ from all before in ``APART`` knobs."""
    chosen: list[Candidate] = []
    for candidate in ranked:
        if len(chosen) < count and all(topology(candidate.params) != topology(one.params) for one in chosen):
            chosen.append(candidate)
    for apart in range(APART, 0, -1):
        for candidate in ranked:
            if len(chosen) == count:
                return chosen
            if all(_distance(space, candidate, other) >= apart for other in chosen):
                chosen.append(candidate)
    return chosen


def _stratified(points: Mapping[tuple[int, ...], Params], rng: random.Random) -> list[tuple[int, ...]]:
    """All points in random order, the topologies taking turns."""
    piles: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for index in rng.sample(list(points), len(points)):
        piles.setdefault(topology(points[index]), []).append(index)
    return [index for turn in zip_longest(*piles.values()) for index in turn if index is not None]


def topology(params: Params) -> tuple[object, ...]:
    """How many devices work together and in which way: what a search changes by starting anew elsewhere."""
    return tuple(value for path, value in params.items() if any(part in path for part in TOPOLOGY))


def _distance(space: SearchSpace, one: Candidate, other: Candidate) -> int:
    return sum(a != b for a, b in zip(space.index(one.params), space.index(other.params), strict=True))

"""Compares searches where the truth is known: whole studies of the synthetic surface, from baseline to recommendation.

A contest runs the real study loop with the real searcher, statistics and verification; only the engine is made of
formulas. Its figures are about the search and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.errors import NoFeasibleError, TrialError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import Budget, MeasurePlan, Origin, Sampler, StudySpec, TrialRecord
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds

from .fake import TIME_JITTER, FakeEvaluator, Surface
from .fake_study import FakePowerController, toy_workload
from .hands import OwnHands
from .loop import StudyLeader
from .objective import Objective
from .simulator.prior import Candidate, candidates
from .space import Params, SearchSpace
from .synthetic import (
    CONCURRENCY,
    SYNTHETIC_SLOS,
    ServingSurface,
    synthetic_deployment,
    synthetic_space,
    true_quantile,
)
from .verify import rank

NOISE = 0.04
WARM = 8
TOLERANCE = 0.05
"""A leader that truly misses an SLO by more than this share is worth nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One study. ``fractions`` are the leader's true worth over the optimum's after each number of trials asked about.

    ``winner`` is that of the recommendation, None without one; ``excess`` by how much it truly misses its worst SLO.
    """

    fractions: tuple[float, ...]
    winner: float | None
    excess: float | None


@cache
def truth_of(deployment: Deployment) -> tuple[float, float]:
    """True tokens per joule, and the worst true violation of the SLOs. Raises OutOfMemoryError."""
    point = ServingSurface().point(deployment, CONCURRENCY)
    centers = {"ttft": point.ttft, "itl": point.itl}
    worst = max(
        true_quantile(centers[slo.metric], slo.statistic.quantile or 0.5, TIME_JITTER) / slo.target - 1
        for slo in map(Slo.parse, SYNTHETIC_SLOS)
    )
    return point.tokens_per_joule, worst


@cache
def synthetic_search_space() -> SearchSpace:
    return SearchSpace(synthetic_space(), synthetic_deployment())


@cache
def optimum() -> float:
    """The most tokens per joule that truly keep every SLO."""
    found = [truth for truth in map(_truth_or_none, synthetic_search_space().plan.points) if truth is not None]
    return max(value for value, excess in found if excess <= 0)


def feasible_share() -> float:
    """Share of the valid points that fit and truly keep every SLO."""
    points = synthetic_search_space().plan.points
    kept = [truth for truth in map(_truth_or_none, points) if truth is not None and truth[1] <= 0]
    return len(kept) / len(points)


def run_contest(
    store: StudyStore,
    sampler: Sampler,
    seed: int,
    *,
    trials: int,
    at: Sequence[int],
    warm: bool = True,
    width: int = 1,
) -> Outcome:
    """One study with a budget of ``trials``; ``warm`` begins it with what a biased simulator likes.

    ``width`` trials are under way at once, each chosen before the others have told anything.
    """
    clock = FakeClock()
    spec = contest_spec(sampler, seed, trials)
    study = store.create_study(spec, {})
    store.add_trial(study.id, synthetic_search_space().baseline_params, spec.baseline, Origin.BASELINE)
    for candidate in warm_points(seed) if warm else ():
        store.add_trial(study.id, candidate.params, candidate.deployment, Origin.SEARCH)
    evaluator = FakeEvaluator(clock, seed=seed, noise=NOISE, surface=ServingSurface(), launch=1.0)
    hands = partial(OwnHands, evaluator=evaluator, power=FakePowerController(), width=width)
    runner = StudyLeader(store, hands, clock, f"contest-{seed}")
    try:
        recommendation = runner.run(study.id).recommendation
    except NoFeasibleError:
        recommendation = None
    done = store.trials(study.id)
    searched = [trial for trial in done if not trial.origin.verifies]
    fractions = tuple(_leader_worth(searched[:count]) for count in at)
    if recommendation is None:
        return Outcome(fractions, None, None)
    value, excess = truth_of(done[recommendation.trial].deployment)
    return Outcome(fractions, value / optimum(), excess)


def contest_spec(sampler: Sampler, seed: int, trials: int) -> StudySpec:
    return StudySpec(
        name="synthetic",
        baseline=synthetic_deployment(),
        space=synthetic_space(),
        workload=toy_workload(2 * seed, concurrency=CONCURRENCY),
        verify_workload=toy_workload(2 * seed + 1, concurrency=CONCURRENCY),
        slos=SYNTHETIC_SLOS,
        budget=Budget(trials=trials, verify_pairs=3),
        plan=MeasurePlan(warmup=Seconds(1.0), window=Seconds(30.0), timeout=Seconds(600.0)),
        seed=seed,
        sampler=sampler,
    )


def warm_points(seed: int) -> list[Candidate]:
    """What a simulator with the bias of this seed would begin with."""
    simulator: Surface = ServingSurface.biased(seed)
    spec = contest_spec("random", seed, 1)
    slos = [Slo.parse(text) for text in spec.slos]
    evaluator = FakeEvaluator(FakeClock(), seed=seed, noise=0.0, surface=simulator)

    def simulate(deployment: Deployment) -> RunResult:
        return evaluator.run(deployment, spec.workload, spec.plan, slos, lambda progress: None)

    return candidates(synthetic_search_space(), simulate, lambda result: result.tokens_per_joule, count=WARM, seed=seed)


def _leader_worth(trials: Sequence[TrialRecord]) -> float:
    """True worth of the best that was measured to be feasible, over the optimum; 0 without any or if it misses."""
    ranked = rank(trials, Objective("tokens_per_joule", SYNTHETIC_SLOS))
    leader = min(ranked, key=lambda one: bool(one.doubts), default=None)  # of the sure ones, or of all, the best
    if leader is None:
        return 0.0
    value, excess = truth_of(trials[leader.trial].deployment)
    return value / optimum() if excess <= TOLERANCE else 0.0


def _truth_or_none(params: Params) -> tuple[float, float] | None:
    try:
        return truth_of(synthetic_search_space().apply(params))
    except TrialError:
        return None

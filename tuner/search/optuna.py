"""Model-based search with Optuna, which is used as a function from a history to a proposal.

Every question builds a fresh in-memory study from what we were told, so Optuna's storage is never the truth. That also
disarms its traps: a trial enters complete, with all its constraints in one order, and is never touched again.
Optuna sees positions of values, not values, so None, bool and mixed types are safe as knobs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from energyopt.core.study import Knob
from tuner.objective import Score, learnable
from tuner.space import Params, SearchSpace

from .geometry import Geometry
from .history import History, Index
from .start import first_points

Method = Literal["gp", "tpe"]
"""Optuna's own Gaussian process is here to be compared with: it takes seconds where ``gp`` takes a part of one."""


class OptunaSearcher:
    """Starts with points chosen to differ, then asks Optuna's model; every answer is a valid point not asked before.

    Points that were told without being asked for (a simulator's choice) count as start.

    A proposal that is invalid or was asked already is replaced by the nearest point that is neither.
    """

    def __init__(self, space: SearchSpace, seed: int, method: Method, startup: int) -> None:
        self.name = "tpe" if method == "tpe" else "optuna-gp"
        self._method = method
        self._seed = seed
        self._history = History(space)
        self._geometry = Geometry(space)
        self._startup = startup
        self._start = first_points(space, self._geometry, startup, seed)
        self._distributions = {f"{i:03d}": _distribution(knob) for i, knob in enumerate(space.knobs)}

    def ask(self) -> Params | None:
        seen = self._history.seen
        start = None
        if len(seen) <= self._startup:  # the baseline is one of them; what a simulator chose begins as well
            start = next((point for point in self._start if point not in seen), None)
        point = start if start is not None else self._geometry.nearest(self._propose(), seen)
        return None if point is None else self._history.ask(point)

    def expect(self, params: Params) -> None:
        self._history.expect(params)

    def tell(self, params: Params, score: Score) -> None:
        self._history.tell(params, score)

    def _propose(self) -> Index:
        """What Optuna would ask after this history; the seed depends on the history's length only."""
        asked = len(self._history.told) + len(self._history.pending)
        seed = random.Random(f"{self._seed}/{asked}").randrange(2**31)
        with _quiet():
            study = optuna.create_study(direction="maximize", sampler=self._sampler(seed))
            study.add_trials(self._trials())
            proposal = study.ask(self._distributions).params
        return tuple(int(proposal[name]) for name in self._distributions)

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        if self._method == "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=self._startup)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=self._startup)

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        scores = learnable(score for _, score in self._history.told)
        told = [self._complete(point, score) for (point, _), score in zip(self._history.told, scores, strict=True)]
        return told + [self._running(point) for point in self._history.pending]

    def _complete(self, point: Index, score: Score) -> optuna.trial.FrozenTrial:
        return optuna.trial.create_trial(
            value=score.value,
            params=self._named(point),
            distributions=self._distributions,
            constraints=dict(score.constraints),
        )

    def _running(self, point: Index) -> optuna.trial.FrozenTrial:
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING, params=self._named(point), distributions=self._distributions
        )

    def _named(self, point: Sequence[int]) -> dict[str, int]:
        return dict(zip(self._distributions, point, strict=True))


def _distribution(knob: Knob) -> BaseDistribution:
    if knob.ordinal:
        return IntDistribution(0, len(knob.values) - 1)
    return CategoricalDistribution(range(len(knob.values)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna reports every study it creates; these are throwaway. Warnings and the caller's setting stay."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)

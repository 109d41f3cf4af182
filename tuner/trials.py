"""The trials of one study on their way from a stored request to a stored result."""

from __future__ import annotations

from collections.abc import Iterator

from energyopt.core.study import Origin, TrialRecord, TrialState

from .cuts import judged
from .hands import ComparisonMovedError, Desk, Hands
from .space import Params, SearchSpace
from .stopping import STOPPING, StopAskedError
from .timing import Timing


class TrialRunner:
    """Adds trials and has them measured by ``hands``; an attempt is on record before it starts."""

    def __init__(self, desk: Desk, space: SearchSpace, hands: Hands, timing: Timing) -> None:
        self._desk, self._space, self._hands, self._timing = desk, space, hands, timing
        self._under_way: set[int] = set()

    def all(self) -> list[TrialRecord]:
        """Every trial, each judged by what the baseline cuts."""
        known = self._desk.store.trials(self._desk.study.id)
        return [judged(trial, known) for trial in known]

    def recover(self) -> None:
        """Take over from a process that worked on the study before."""
        self._hands.recover()

    def let_go(self) -> None:
        """Leave the study to whoever comes next."""
        self._hands.let_go()

    def drain(self) -> None:
        """Wait for what runs."""
        self._hands.drain()

    @property
    def under_way(self) -> int:
        """Trials that were begun and have not ended."""
        return len(self._under_way)

    @property
    def has_room(self) -> bool:
        """Whether another trial could be measured beside those under way."""
        return not self._under_way or len(self._under_way) < self._hands.width

    def waiting(self, known: list[TrialRecord]) -> Iterator[TrialRecord]:
        """Trials that have not ended and were not begun here: queued ones, and those that run for an earlier leader."""
        open_states = (TrialState.QUEUED, TrialState.RUNNING)
        return (one for one in known if one.state in open_states and one.number not in self._under_way)

    def add(self, params: Params, origin: Origin, pair: int | None = None) -> TrialRecord:
        """A new queued trial. Raises StopAskedError."""
        self._heed()
        self._desk.lease.confirm()
        return self._desk.store.add_trial(self._desk.study.id, params, self._space.apply(params), origin, pair)

    def begin(self, trial: TrialRecord) -> None:
        """Have a trial measured. Raises StopAskedError before it starts."""
        self._heed()
        self._desk.lease.confirm()
        self._hands.begin(trial)
        self._under_way.add(trial.number)

    def ended(self) -> TrialRecord:
        """The next of those under way that ends. Raises ComparisonMovedError, and then none is under way."""
        try:
            done, took = self._hands.ended()
        except ComparisonMovedError:
            self._under_way.clear()
            raise
        self._under_way.discard(done.number)
        done = judged(done, self._desk.store.trials(self._desk.study.id))
        self._timing.note(took, ran=done.result is not None, joules=done.result.joules if done.result else None)
        self._desk.reporter.finished(done)
        return done

    def run(self, trial: TrialRecord) -> TrialRecord:
        """``begin`` and ``ended`` of the only one under way."""
        self.begin(trial)
        return self.ended()

    def _heed(self) -> None:
        if self._desk.store.study(self._desk.study.id).state in STOPPING:
            raise StopAskedError

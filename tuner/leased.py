"""Workers as the hands of a study: its queued trials are open to lease, and the leader waits until they are done."""

from __future__ import annotations

from collections.abc import Callable

from energyopt.core.errors import HeldError
from energyopt.core.leases import HEARD, MAX_WIDTH, Glance, LeaseRecord, LeaseStore, WorkerFacts
from energyopt.core.study import TrialRecord
from energyopt.core.units import Seconds

from .hands import ComparisonMovedError, Desk
from .lease import LeaseLostError
from .ports import Progress
from .stopping import STOPPING, StopAskedError

POLL = Seconds(0.25)


class LeasedHands:
    """``Hands`` whose trials are measured by whoever leases them; results are stored when they come in.

    ``verifier`` is the only worker that may run the final comparison, whose runs must be on one machine, and all others
    must be of its kind; without one the first that takes a run of it is. ``rest`` passes the time between two looks.
    """

    def __init__(
        self,
        desk: Desk,
        leases: LeaseStore,
        *,
        verifier: WorkerFacts | None = None,
        most: int = MAX_WIDTH,
        rest: Callable[[], None] | None = None,
    ) -> None:
        self._desk, self._leases, self._most, self._verifier = desk, leases, most, verifier
        self._rest = rest or (lambda: desk.clock.sleep(POLL))
        self._begun: dict[int, TrialRecord] = {}
        self._shown: int | None = None

    @property
    def width(self) -> int:
        return min(self._most, max(1, self._leases.hands(self._desk.study.id, HEARD)))

    def recover(self) -> None:
        """From now on trials are for workers; those that run by lease go on."""
        study, lease = self._desk.study.id, self._desk.lease
        try:
            self._leases.lead(study, lease.owner, verifier=self._verifier)
        except HeldError as error:
            raise LeaseLostError(f"Another process took over study {study}.") from error
        self._leases.reap(study, orphans=True)

    def begin(self, trial: TrialRecord) -> None:
        self._begun[trial.number] = trial

    def ended(self) -> tuple[TrialRecord, Seconds]:
        """Raises StopAskedError when a stop is asked for and nothing runs; what runs is waited for.

        Raises ComparisonMovedError when the worker of the final comparison is not heard of any more.
        """
        while True:
            seen = self._look()
            for number, took in seen.done.items():
                del self._begun[number]
                return self._record(number), took
            if seen.state in STOPPING and not seen.leases:
                raise StopAskedError
            if seen.forsaken and self._comparing and self._leases.compare_anew(self._desk.study.id):
                self._begun.clear()
                raise ComparisonMovedError
            self._show(seen.leases)
            self._rest()

    @property
    def _comparing(self) -> bool:
        return any(trial.origin.verifies for trial in self._begun.values())

    def drain(self) -> None:
        while self._look().leases:
            self._rest()

    def let_go(self) -> None:
        """Workers finish what they have; who leads next finds it done."""

    def _look(self) -> Glance:
        study, lease = self._desk.study.id, self._desk.lease
        seen = self._leases.glance(study, list(self._begun))
        if seen.owner != lease.owner:
            lease.confirm()
        if seen.lost:
            self._leases.reap(study)
        return seen

    def _record(self, number: int) -> TrialRecord:
        return next(trial for trial in self._desk.store.trials(self._desk.study.id) if trial.number == number)

    def _show(self, leases: tuple[LeaseRecord, ...]) -> None:
        """Of several trials the first is shown, as its worker last spoke of it."""
        first = next((one for one in leases if one.number in self._begun), None)
        if first is None:
            return
        if first.number != self._shown:
            self._shown = first.number
            self._desk.reporter.started(self._begun[first.number])
        if first.stage:
            self._desk.reporter.stage(Progress(first.stage, first.fraction))

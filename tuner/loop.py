"""The study loop: baseline, search, verification, with every step on record before and after it happens.

``StudyRunner.run`` may be killed anywhere and called again: what was measured stays, what was running is run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, NoFeasibleError, StoreError
from energyopt.core.results import RunResult
from energyopt.core.study import Budget, Event, Origin, StudyRecord, StudyState, TrialRecord, TrialState, Value
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds

from .hands import ComparisonMovedError, Desk, MakeHands, OwnHands
from .lease import DEFAULT_TTL, Lease, LeaseLostError
from .nearest import explain_infeasible
from .objective import Objective
from .ports import AccuracyGate, Evaluator, PowerController
from .progress import Reporter, StudyProgressSink
from .repeat import Repeats
from .search.factory import make_searcher
from .search.ports import Searcher
from .space import Params, SearchSpace
from .stopping import StopAskedError
from .timing import Timing
from .trials import TrialRunner
from .verification import GATE_RUNS, Verification

_EVENT_PAGE = 1000
RUNNABLE = frozenset(StudyState) - {
    StudyState.CANCELLING,
    StudyState.CANCELLED,
    StudyState.PAUSING,
    StudyState.SUCCEEDED,
}
"""States from which a study goes on when it is run."""
PATIENCE = 3
"""Runs without a single joule after which a study for tokens per joule gives up."""


class StudyLeader:
    """Decides what is measured of one study at a time, in the calling thread, and has it measured by ``hands``.

    ``owner`` is unique to this process.
    """

    def __init__(
        self,
        store: StudyStore,
        hands: MakeHands,
        clock: Clock,
        owner: str,
        on_progress: StudyProgressSink = lambda progress: None,
        *,
        lease_ttl: Seconds = DEFAULT_TTL,
        gate: AccuracyGate | None = None,
        remark: str = "",
    ) -> None:
        """``remark`` is added to the note of a recommendation that is not the baseline."""
        self._store, self._hands, self._clock = store, hands, clock
        self._owner, self._on_progress, self._ttl = owner, on_progress, lease_ttl
        self._gate, self._remark = gate, remark

    def run(self, study_id: str) -> StudyRecord:
        """Start or resume the study and bring it to its end; one that succeeded or was cancelled is returned as it is.

        Raises NoFeasibleError if nothing keeps the SLOs, StoreError while another process works on the study, and
        whatever broke; then the study is FAILED, and may be run again. An interrupt leaves it resumable.
        """
        study = self._store.study(study_id)
        job = _Job(study, self._store, self._hands, self._clock, self._on_progress, self._gate, self._remark)
        with Lease(
            self._store, self._clock, study.id, self._owner, ttl=self._ttl, on_wait=job.waiting_for_lease
        ) as lease:
            job.run(lease)
        return self._store.study(study.id)


class StudyRunner(StudyLeader):
    """A leader that measures everything itself, one trial after another."""

    def __init__(
        self,
        store: StudyStore,
        evaluator: Evaluator,
        power: PowerController,
        clock: Clock,
        owner: str,
        on_progress: StudyProgressSink = lambda progress: None,
        *,
        lease_ttl: Seconds = DEFAULT_TTL,
        gate: AccuracyGate | None = None,
    ) -> None:
        own: MakeHands = partial(OwnHands, evaluator=evaluator, power=power)
        super().__init__(store, own, clock, owner, on_progress, lease_ttl=lease_ttl, gate=gate)


class _Job:
    """One study on its way; holds what ``StudyLeader`` was given for it."""

    def __init__(
        self,
        study: StudyRecord,
        store: StudyStore,
        hands: MakeHands,
        clock: Clock,
        on_progress: StudyProgressSink,
        gate: AccuracyGate | None = None,
        remark: str = "",
    ) -> None:
        self._gate, self._remark = gate, remark
        self._id, self._spec, self._store = study.id, study.spec, store
        self._hands, self._clock = hands, clock
        self._objective = Objective(study.spec.maximize, study.spec.slos)
        self._space = SearchSpace(study.spec.space, study.spec.baseline)
        self._repeats = Repeats(self._objective, study.spec.budget.trials)
        self._unmetered: int | None = 0
        self._timing = Timing(study.spec.budget, clock, self._events(), reserve=GATE_RUNS if gate else 0)
        self._reporter = Reporter(study.spec, self._objective, self._timing, clock, on_progress)

    def waiting_for_lease(self, seconds: Seconds) -> None:
        self._reporter.say(f"waiting {seconds:.0f} s for the lease of an earlier run to end", "waiting")

    def run(self, lease: Lease) -> None:
        study = self._store.study(self._id)
        if study.state in (StudyState.SUCCEEDED, StudyState.CANCELLED):
            return
        trials = self._runner(study, lease)
        if study.state is StudyState.NO_FEASIBLE:
            raise NoFeasibleError(explain_infeasible(trials.all()))
        try:
            self._work(trials)
        except StopAskedError:
            trials.drain()
            self._stop()
        except (NoFeasibleError, LeaseLostError):
            raise
        except Exception as error:  # recorded here, and raised again: nothing is swallowed
            self._abandon(trials, error)
            raise
        except BaseException as stop:  # an interrupt: the study stays as it is, to be resumed
            self._requeue(trials, stop)
            raise

    def _work(self, trials: TrialRunner) -> None:
        trials.recover()
        for trial in trials.all():
            if trial.state is TrialState.DONE:
                self._reporter.finished(trial)
        if not any(trial.origin.verifies for trial in trials.all()):
            self._search(trials)
        self._verify(trials)

    def _enter(self, state: StudyState) -> None:
        """Unless a stop was asked for in the meantime: that must not be written over. Raises StopAskedError."""
        if not self._store.change_state(self._id, state, when=RUNNABLE):
            raise StopAskedError

    def _stop(self) -> None:
        """Do what was asked for; finished trials stay, and a paused study is gone on with as if it had been killed."""
        self._store.change_state(self._id, StudyState.CANCELLED, when=[StudyState.CANCELLING])
        self._store.change_state(self._id, StudyState.PAUSED, when=[StudyState.PAUSING])

    def _search(self, trials: TrialRunner) -> None:
        self._enter(StudyState.RUNNING)
        searcher = make_searcher(self._spec, self._space)
        self._event("search_started", {"sampler": searcher.name, "points": len(self._space.plan.points)})
        learned: set[int] = set()
        while True:
            for done in trials.all():
                if done.state is TrialState.DONE and done.number not in learned:
                    learned.add(done.number)
                    self._learn(searcher, done)
            while trials.has_room and (trial := self._next(searcher, trials)) is not None:
                trials.begin(trial)
            if not trials.under_way:
                return
            trials.ended()

    def _next(self, searcher: Searcher, trials: TrialRunner) -> TrialRecord | None:
        """What to run now: what waits, the baseline, then what the search asks while the budget lasts."""
        known, budget = trials.all(), self._budget()
        waiting = next(trials.waiting(known), None)
        if waiting is not None:
            searcher.expect(waiting.params)
            return waiting
        if not known:
            return trials.add(self._space.baseline_params, Origin.BASELINE)
        if len(known) >= budget.trials or not self._timing.fits_beside(trials.under_way):
            return None
        again = self._repeats.next(known, self._space.baseline_params)
        if again is not None:
            return trials.add(again, Origin.REPEAT)
        params = searcher.ask()
        return None if params is None else trials.add(params, Origin.SEARCH)

    def _learn(self, searcher: Searcher, trial: TrialRecord) -> None:
        if trial.result is not None:
            self._require_joules(trial.result)
        searcher.tell(trial.params, self._objective.score(trial.result))

    def _require_joules(self, result: RunResult) -> None:
        """Without a meter tokens per joule cannot be maximised; better to stop early than after the last trial.

        One run without joules may be a hiccup (a gap, no tokens in the window); several and nothing else are not.
        """
        if result.power_valid or self._spec.maximize != "tokens_per_joule":
            self._unmetered = None
        elif self._unmetered is not None:
            self._unmetered += 1
        if self._unmetered == PATIENCE:
            why = "; ".join(result.power_reasons) or "nothing measures energy on this machine"
            raise ConfigError(
                f"tokens_per_joule cannot be maximised because no joules were measured ({why}): "
                "maximize output_rate instead, or give access to a power meter."
            )

    def _verify(self, trials: TrialRunner) -> None:
        self._enter(StudyState.VERIFYING)
        self._reporter.search_is_over()
        baseline = self._space.baseline_params
        gate = self._gate
        refuses = None if gate is None else partial(self._refuses, gate)
        while True:
            verification = Verification(self._spec, baseline, self._objective, trials, self._timing.fits, refuses)
            try:
                recommendation = verification.recommend()
                break
            except ComparisonMovedError:
                self._reporter.say("the machine of the comparison is gone: it begins anew on another", "verifying")
        if recommendation is None:
            self._store.change_state(self._id, StudyState.NO_FEASIBLE, when=frozenset(StudyState))
            raise NoFeasibleError(explain_infeasible(trials.all()))
        if self._remark and recommendation.pairs:
            note = f"{recommendation.note} {self._remark}".strip()
            recommendation = recommendation.model_copy(update={"note": note})
        self._store.recommend(self._id, recommendation)
        self._event("study_finished", {"trial": recommendation.trial, "verified": recommendation.verified})

    def _refuses(self, gate: AccuracyGate, params: Params) -> str | None:
        """Ask the accuracy gate, and keep its answer with the study."""
        self._reporter.say("comparing the candidate's answers with the baseline's", "verifying")
        reason = gate.refuses(self._space.apply(params))
        self._event("accuracy_checked", {"passed": reason is None, "reason": reason})
        if reason is not None:
            self._reporter.say(f"refused, its answers are worse than the baseline's: {reason}", "verifying")
        return reason

    def _runner(self, study: StudyRecord, lease: Lease) -> TrialRunner:
        desk = Desk(self._store, study, self._objective, self._clock, lease, self._reporter)
        return TrialRunner(desk, self._space, self._hands(desk), self._timing)

    def _abandon(self, trials: TrialRunner, error: Exception) -> None:
        self._requeue(trials, error)
        try:
            message = str(error) or type(error).__name__
            self._store.change_state(self._id, StudyState.FAILED, when=frozenset(StudyState), error=message)
        except StoreError as refused:
            error.add_note(f"The study could not be marked as failed either: {refused}")

    def _requeue(self, trials: TrialRunner, error: BaseException) -> None:
        """The attempt that was running counts as lost; if even that cannot be stored, the next run will see to it."""
        try:
            trials.let_go()
        except StoreError as refused:
            error.add_note(f"The running trial could not be queued again either: {refused}")

    def _budget(self) -> Budget:
        """The budget as it is now: it may be changed while the study runs."""
        budget = self._store.study(self._id).spec.budget
        self._timing.limit(budget)
        return budget

    def _event(self, kind: str, data: dict[str, Value]) -> None:
        self._store.add_event(self._id, kind, data)

    def _events(self) -> Iterator[Event]:
        after = 0
        while page := self._store.events(self._id, after=after, limit=_EVENT_PAGE):
            yield from page
            after = page[-1].id

"""A worker's loop: take a trial, measure it under a lease that is kept alive, bring the result.

What the configuration does wrong is a result; what goes wrong around it is a fault, and the trial is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Protocol, TypeVar

from energyopt.core.errors import EnergyoptError, StoreError, TrialError, UsageError
from energyopt.core.leases import LeaseGoneError, WorkerFacts
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds

from .objective import outcome_of
from .ports import Evaluator, PowerController, Progress, ProgressSink
from .source import Failure, LeasedTrial, TrialSource

T = TypeVar("T")
_log = logging.getLogger(__name__)
WAIT = Seconds(20.0)
PAUSE = 1.0
TELL_TRIES = 20
"""How often a result is brought again while nobody takes it, with ``PAUSE`` between; the lease ends in that time."""


class Bench(Protocol):
    """What this machine measures with."""

    def tools(self, trial: LeasedTrial) -> tuple[Evaluator, PowerController]:
        """Made for a trial, because studies differ in evaluator and devices. Raises what making them raises."""
        ...


class LeaseWorker:
    """Works one trial at a time until told to end. ``notify`` is told what happens, a line each."""

    def __init__(
        self,
        source: TrialSource,
        worker: WorkerFacts,
        bench: Bench,
        notify: Callable[[str], None],
        *,
        wait: Seconds = WAIT,
        pause: float = PAUSE,
    ) -> None:
        self._source, self._worker, self._bench, self._notify = source, worker, bench, notify
        self._wait, self._pause = wait, pause
        self._complaint = ""

    def work(self, stop: Event) -> None:
        """Until ``stop``; what is under way then is finished first."""
        while not stop.is_set():
            if not self.work_once():
                stop.wait(self._pause)

    def work_once(self) -> bool:
        """One trial, if there is one; False if there is none, or nobody who gives any.

        Raises what the source raises for a key that is refused: no other trial would be given either.
        """
        try:
            trial = self._source.acquire(self._worker, self._wait)
        except (StoreError, UsageError) as error:
            self._complain(str(error))
            return False
        self._complaint = ""
        if trial is None:
            return False
        self._notify(f"trial {trial.number} of study {trial.study}: begun, attempt {trial.attempt}")
        try:
            self._notify(f"trial {trial.number} of study {trial.study}: {self._attempt(trial)}")
        except LeaseGoneError:
            self._notify(f"trial {trial.number} of study {trial.study}: too late, it was given to somebody else")
        except (StoreError, UsageError) as error:
            self._notify(f"trial {trial.number} of study {trial.study}: nobody takes its result ({error})")
        return True

    def _attempt(self, trial: LeasedTrial) -> str:
        """Measure and tell; what became of it in a word."""
        found = self._found(trial)
        if not isinstance(found, str):
            try:
                return self._tell(partial(self._bring, trial.lease, found))
            except LeaseGoneError:
                raise
            except UsageError as refused:  # told again it would be refused again
                found = f"what was found is not taken: {refused.message}"
        self._tell(partial(self._source.fault, trial.lease, found))
        return f"not measured, to be tried again: {found}"

    def _found(self, trial: LeasedTrial) -> RunResult | Failure | str:
        """What measuring gave, or what is wrong around it, in words. An interrupt gives the trial back."""
        try:
            with self._alive(trial) as progress:
                return self._measure(trial, progress)
        except TrialError as error:
            return Failure(outcome=outcome_of(error), error=error.message)
        except LeaseGoneError:
            raise
        except EnergyoptError as error:
            return error.message
        except Exception as error:  # noqa: BLE001  the border of a trial: the worker lives on, the attempt counts as a fault
            _log.exception("unexpected error in trial %s of %s", trial.number, trial.study)
            return f"a fault of energyopt ({type(error).__name__}); the worker's log says more"
        except BaseException:  # an interrupt
            with contextlib.suppress(EnergyoptError):  # then the lease ends by itself
                self._source.release(trial.lease)
            raise

    def _bring(self, lease: str, found: RunResult | Failure) -> str:
        if isinstance(found, RunResult):
            return self._source.complete(lease, found).value
        self._source.fail(lease, found)
        return found.outcome.value

    def _measure(self, trial: LeasedTrial, progress: ProgressSink) -> RunResult:
        slos = [Slo.parse(text) for text in trial.spec.slos]
        evaluator, power = self._bench.tools(trial)
        with power.applied(trial.deployment.decode.power):
            return evaluator.run(trial.deployment, trial.workload, trial.spec.plan, slos, progress)

    @contextmanager
    def _alive(self, trial: LeasedTrial) -> Iterator[ProgressSink]:
        """Signs of life from a thread of their own.

        Once somebody has ended the lease, its devices are another's: the next word of progress raises LeaseGoneError
        into the measurement, which ends it.
        """
        at, ended, gone = [Progress("launching", 0.0)], threading.Event(), list[LeaseGoneError]()

        def note(progress: Progress) -> None:
            if gone:
                raise gone[0]
            at[0] = progress

        def keep() -> None:
            while not ended.wait(trial.ttl / 4):
                try:
                    self._source.beat(trial.lease, at[0].stage, at[0].fraction)
                except LeaseGoneError as error:
                    gone.append(error)
                    return
                except EnergyoptError as error:  # the next one may get through, and else the lease ends
                    _log.warning("no sign of life got through: %s", error)

        thread = threading.Thread(target=keep, name=f"lease of trial {trial.number}", daemon=True)
        thread.start()
        try:
            yield note
        finally:
            ended.set()
            thread.join()

    def _tell(self, call: Callable[[], T]) -> T:
        """A measurement is worth asking again for."""
        for _ in range(TELL_TRIES - 1):
            try:
                return call()
            except StoreError as error:
                _log.warning("a result is not taken yet: %s", error)
                time.sleep(self._pause)
        return call()

    def _complain(self, words: str) -> None:
        if words != self._complaint:
            self._complaint = words
            self._notify(f"waiting: {words}")

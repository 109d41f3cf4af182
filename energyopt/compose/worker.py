"""The worker: takes submitted studies that nobody works on, one at a time, and leads them to their end.

Where none waits it helps with trials of those that others lead. A killed worker's study is free once its lease ends,
and goes on where it stopped. One worker has a slot of its host.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import EnergyoptError, HeldError, NoFeasibleError, NotFoundError, StoreError
from energyopt.core.study import StudyState, Value
from energyopt.store.service_store import ServiceStore
from tuner.lease import DEFAULT_TTL
from tuner.progress import StudyProgress, StudyProgressSink

_log = logging.getLogger(__name__)
POLL = 1.0
STORE_RETRIES = 3
"""How often one study is tried again because the database refused; more looks like the study's own fault."""

MOST_LED = 200
"""Studies that one conductor leads at once: each takes a thread and a look at the database now and then."""

Notify = Callable[[str], None]


RunStudy = Callable[[str, str, StudyProgressSink], object]
"""Runs a study, by its id, that its owner holds; raises what ``compose.study.run_study`` raises."""


class Worker:
    """Works until ``stop`` is set, or until there is nothing to do after ``drain`` was."""

    def __init__(
        self,
        store: ServiceStore,
        run: RunStudy,
        new_owner: Callable[[], str],
        notify: Notify,
        *,
        clock: Clock | None = None,
        poll: float = POLL,
        help_out: Callable[[], bool] = lambda: False,
        suits: Callable[[str], bool] = lambda study: True,
    ) -> None:
        """``help_out`` is what to do where no study waits to be led: a trial of one that somebody else leads.

        A study that another kind of machine has begun, for which ``suits`` is False, is left to one of those.
        """
        self._store, self._run, self._new_owner, self._notify = store, run, new_owner, notify
        self._help_out, self._suits = help_out, suits
        self._clock, self._poll = clock or MonotonicClock(), poll
        self._refused: dict[str, int] = {}

    def work(self, stop: Event, drain: Event) -> None:
        """A database that is away is waited for."""
        said = ""
        while not stop.is_set() and not drain.is_set():
            try:
                busy, said = self.work_once(), ""
            except StoreError as error:
                if str(error) != said:  # once, not at every try
                    self._notify(f"waiting for the database: {error}")
                busy, said = False, str(error)
            if not busy:
                stop.wait(self._poll)

    def work_once(self) -> bool:
        """Lead one study, if one waits, else help with a trial of another; False if there is nothing to do."""
        for study_id in filter(self._suits, self._store.jobs.waiting()):
            owner = self._new_owner()
            try:
                self._store.studies.claim(study_id, owner, DEFAULT_TTL)
            except (HeldError, NotFoundError):
                continue  # another worker was quicker, or it is gone
            self._store.studies.change_state(study_id, StudyState.PLANNING, when=[StudyState.QUEUED])
            self._begin(study_id, owner)
            return True
        return self._help_out()

    def _begin(self, study_id: str, owner: str) -> None:
        self._attempt(study_id, owner)

    def _attempt(self, study_id: str, owner: str) -> None:
        self._notify(f"study {study_id}: begun")
        try:
            self._run(study_id, owner, self._sink(study_id))
        except NoFeasibleError as error:
            self._notify(f"study {study_id}: {error}")
        except StoreError as error:
            self._notify(f"study {study_id}: {error}")
            self._try_again(study_id)
        except EnergyoptError as error:
            self._notify(f"study {study_id} failed: {error}")
            self._fail(study_id, str(error))
        except Exception:  # noqa: BLE001  the border of the process: the study is stored as failed, the next one goes on
            _log.exception("unexpected error in study %s", study_id)
            self._notify(f"study {study_id} failed: a fault of energyopt, see the log")
            self._fail(study_id, "A fault of energyopt; the worker's log says more.")
        else:
            self._notify(f"study {study_id}: {self._store.studies.study(study_id).state}")
        finally:
            with contextlib.suppress(StoreError, NotFoundError):  # then it ends by itself, a little later
                self._store.studies.release(study_id, owner)

    def _fail(self, study_id: str, error: str) -> None:
        """For what ended a study before it could say so itself: a device that this host lacks, for one."""
        unfinished = [state for state in StudyState if not state.terminal]
        with contextlib.suppress(StoreError, NotFoundError):  # then it waits, and is tried again
            self._store.studies.change_state(study_id, StudyState.FAILED, when=unfinished, error=error)

    def _try_again(self, study_id: str) -> None:
        """What the database refused is not the study's fault."""
        self._refused[study_id] = self._refused.get(study_id, 0) + 1
        if self._refused[study_id] <= STORE_RETRIES:
            self._store.studies.change_state(study_id, StudyState.QUEUED, when=[StudyState.FAILED])

    def _sink(self, study_id: str) -> StudyProgressSink:
        """Progress to the database, at most once a second, except that a new trial or stage shows at once."""
        last: list[object] = [None, 0.0]

        def note(progress: StudyProgress) -> None:
            where, now = (progress.trial, progress.stage, progress.done), self._clock.now()
            if where == last[0] and now - float(str(last[1])) < 1.0:
                return
            last[:] = [where, now]
            try:
                self._store.jobs.note_progress(study_id, _words(progress))
            except StoreError as error:  # only the view of it is late; the trial must not suffer
                _log.warning("progress of %s is not stored: %s", study_id, error)

        return note


def _words(progress: StudyProgress) -> dict[str, Value]:
    return {
        "trial": progress.trial,
        "done": progress.done,
        "total": progress.total,
        "stage": progress.stage,
        "fraction": progress.fraction,
        "best": progress.best,
        "eta": progress.eta,
        "message": progress.message,
    }


class Conductor(Worker):
    """Leads every study that waits, each on a thread of its own, and measures nothing."""

    def __init__(
        self,
        store: ServiceStore,
        run: RunStudy,
        new_owner: Callable[[], str],
        notify: Notify,
        *,
        clock: Clock | None = None,
        poll: float = POLL,
    ) -> None:
        super().__init__(store, run, new_owner, notify, clock=clock, poll=poll)
        self._led: list[threading.Thread] = []

    def work_once(self) -> bool:
        self._led = [thread for thread in self._led if thread.is_alive()]
        return len(self._led) < MOST_LED and super().work_once()

    def _begin(self, study_id: str, owner: str) -> None:
        thread = threading.Thread(
            target=self._attempt, args=(study_id, owner), name=f"leader of {study_id}", daemon=True
        )
        self._led.append(thread)
        thread.start()

    def wait(self) -> None:
        """Until the studies that are led have ended, or what leads them was told to stop."""
        for thread in self._led:
            thread.join()


class Slot:
    """The right to use the devices of this host, by the lock of a file in ``folder``; it ends with the process."""

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"slot-{number}.lock"
        self._descriptor: int | None = None

    def take(self, given_up: Callable[[], bool], notify: Notify, *, poll: float = 0.2) -> bool:
        """Wait for it; False if ``given_up`` first."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        told = False
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if given_up():
                    return False
                if not told:
                    notify(f"another worker of this host has {self._path.stem}: waiting for it to end")
                told = True
                time.sleep(poll)

    def give_back(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

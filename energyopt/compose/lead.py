"""Leading a study on a machine that measures too: the search decides on a thread, this thread measures.

Measuring stays in the calling thread, so that an interrupt ends the running trial as it would without workers. What
needs the machine for itself and is no trial, the accuracy gate, is done there as well, between trials.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import Deployment
from energyopt.core.leases import TTL, WorkerFacts
from energyopt.core.study import StudyRecord
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore
from tuner.lease_worker import Bench, LeaseWorker
from tuner.leased import LeasedHands
from tuner.loop import StudyLeader
from tuner.ports import AccuracyGate
from tuner.progress import StudyProgressSink
from tuner.source import DirectSource

LOOK = 0.2
"""Seconds between two looks at a queue that is in the database at hand."""
ASIDE = "Its answers were not compared with the baseline's: this study is led where no engine runs."


class LeadOverError(BaseException):
    """The process ends: the study stays as it is, as after an interrupt."""


class Errands:
    """Calls of other threads, done by the one that asks for them."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over
        self._waiting: queue.SimpleQueue[tuple[Future[str | None], Callable[[], str | None]]] = queue.SimpleQueue()

    def send(self, call: Callable[[], str | None]) -> str | None:
        """Have ``call`` done, and wait for it. Raises LeadOverError if nobody will."""
        future: Future[str | None] = Future()
        self._waiting.put((future, call))
        while not self._over.is_set():
            if wait([future], timeout=LOOK).done:  # its own TimeoutError is an answer and no sign to wait on
                return future.result()
        raise LeadOverError

    def do_one(self) -> bool:
        """Do what waits longest; False if nothing does. An interrupt goes through."""
        try:
            future, call = self._waiting.get_nowait()
        except queue.Empty:
            return False
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001  it belongs to who sent the errand, and is raised there
            future.set_exception(error)
        return True


class SentGate:
    """An ``AccuracyGate`` that the measuring thread passes judgement with."""

    def __init__(self, gate: AccuracyGate, errands: Errands) -> None:
        self._gate, self._errands = gate, errands

    def refuses(self, candidate: Deployment) -> str | None:
        return self._errands.send(partial(self._gate.refuses, candidate))


def lead_here(
    store: ServiceStore,
    study: StudyRecord,
    worker: WorkerFacts,
    bench: Bench,
    on_progress: StudyProgressSink,
    notify: Callable[[str], None],
    *,
    gate: AccuracyGate | None = None,
    ttl: Seconds = TTL,
) -> None:
    """Lead a study that ``worker.id`` holds, and measure its trials beside whoever else leases them.

    The final comparison runs here. Raises what ``StudyLeader.run`` raises; an interrupt leaves all to be resumed.
    """
    done, over = threading.Event(), threading.Event()
    errands, failed = Errands(over), list[BaseException]()

    def lead() -> None:
        hands = partial(LeasedHands, leases=store.leases, verifier=worker, rest=partial(_rest, over))
        own = None if gate is None else SentGate(gate, errands)
        leader = StudyLeader(store.studies, hands, MonotonicClock(), worker.id, on_progress, lease_ttl=ttl, gate=own)
        try:
            leader.run(study.id)
        except BaseException as error:  # noqa: BLE001  raised again by the thread that waits for us
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=lead, name=f"leader of {study.id}", daemon=True)
    source = DirectSource(store.studies, store.leases, study_id=study.id, ttl=ttl)
    hand = LeaseWorker(source, worker, bench, notify, wait=Seconds(0.0))
    thread.start()
    try:
        while not done.is_set():
            if not errands.do_one() and not hand.work_once():
                done.wait(LOOK)
    finally:
        over.set()
        thread.join()
    for error in failed:
        raise error


def lead_aside(
    store: ServiceStore,
    study_id: str,
    owner: str,
    on_progress: StudyProgressSink,
    over: threading.Event,
    *,
    ttl: Seconds = TTL,
) -> None:
    """Lead a study that ``owner`` holds, measured by workers alone; nobody compares answers. As ``lead_here``."""
    hands = partial(LeasedHands, leases=store.leases, rest=partial(_rest, over))
    studies: StudyStore = store.studies
    leader = StudyLeader(studies, hands, MonotonicClock(), owner, on_progress, lease_ttl=ttl, remark=ASIDE)
    leader.run(study_id)


def _rest(over: threading.Event) -> None:
    if over.wait(LOOK):
        raise LeadOverError

"""``energyopt worker``: the worker of this host on a database, in this process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from energyopt.core.config import Config
from energyopt.store.database import default_url
from energyopt.store.service_store import open_service_store
from tuner.progress import StudyProgressSink

from .results import open_session
from .study import new_owner, run_study
from .worker import Slot, Worker


class WorkerRequest(Config):
    """``attached``: a service started it, and it ends with what it works on once that service is gone."""

    db: str | None = None
    out: Path | None = None
    slot: int = 0
    attached: bool = False


def state_folder() -> Path:
    """Where workers of this user keep their locks and logs, whatever their database is."""
    return Path(default_url(os.environ).removeprefix("sqlite:///")).parent / "workers"


def run_worker(request: WorkerRequest, notify: Callable[[str], None]) -> None:
    """Work until an interrupt. Raises StoreError for a database that cannot be opened."""
    drain = threading.Event()
    if request.attached:
        threading.Thread(target=_await_end, args=(drain,), daemon=True, name="end of the service").start()
    slot = Slot(state_folder(), request.slot)
    try:
        if not slot.take(drain.is_set, notify):
            return
        session = open_session(request.db, request.out)
        store = open_service_store(session.url)

        def run(study_id: str, owner: str, on_progress: StudyProgressSink) -> object:
            return run_study(session, study_id, on_progress, owner=owner)

        notify(f"working for {store.name}, slot {request.slot}")
        Worker(store, run, new_owner, notify).work(threading.Event(), drain)
    finally:
        slot.give_back()


def _await_end(drain: threading.Event) -> None:
    """The service holds the other end of our standard input; it closes when the service ends, however it ends."""
    while sys.stdin.buffer.read(4096):
        pass
    drain.set()

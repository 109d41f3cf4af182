"""``energyopt worker``: the worker of this host, on a database or on a service, in this process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from energyopt.client import Client
from energyopt.core.config import Config, DeviceKind
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from energyopt.store.database import default_url
from energyopt.store.memory import MemoryStudyStore
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.lease_worker import LeaseWorker
from tuner.progress import StudyProgressSink
from tuner.source import DirectSource

from .http_source import HttpSource
from .lead import LeadOverError, lead_aside, lead_here
from .machine_kind import hardware_name
from .results import Session, open_session
from .study import new_owner, study_gate, study_tools, write_outcome
from .worker import Conductor, Slot, Worker
from .worker_bench import HostBench, worker_facts

REMOTE_KINDS = ("embedded", "simulator")
"""Evaluators of a worker that does not reach the database: others are configured on the host of the service."""
LOCAL_KINDS = ("embedded", "simulator", "replay", "endpoint", "vllm", "sglang")


class WorkerRequest(Config):
    """``attached``: a service started it, and it ends with what it works on once that service is gone.

    ``api`` is the service whose trials it measures; without it the database's studies are led and measured.
    ``conduct``: studies are led for workers elsewhere, and nothing is measured here. ``device`` is what it measures on.
    """

    db: str | None = None
    out: Path | None = None
    slot: int = 0
    attached: bool = False
    api: str | None = None
    key: str | None = None
    conduct: bool = False
    device: DeviceKind = "auto"


def state_folder() -> Path:
    """Where workers of this user keep their locks and logs, whatever their database is."""
    return Path(default_url(os.environ).removeprefix("sqlite:///")).parent / "workers"


def run_worker(request: WorkerRequest, notify: Callable[[str], None]) -> None:
    """Work until an interrupt. Raises StoreError for a database that cannot be opened, ApiError for a refused key."""
    if request.api is not None and request.conduct:
        raise ConfigError("A worker of a service measures; studies are led where the database is.")
    drain = threading.Event()
    if request.attached:
        threading.Thread(target=_await_end, args=(drain,), daemon=True, name="end of the service").start()
    if request.conduct:
        _conduct(request, drain, notify)
        return
    slot = Slot(state_folder(), request.slot)
    try:
        if not slot.take(drain.is_set, notify):
            return
        if request.api is not None:
            _work_remotely(request, request.api, drain, notify)
        else:
            _work_here(request, drain, notify)
    finally:
        slot.give_back()


def _work_here(request: WorkerRequest, drain: threading.Event, notify: Callable[[str], None]) -> None:
    """Lead studies of the database one at a time; where none waits, help with those of others."""
    session = open_session(request.db, request.out)
    store, bench = open_service_store(session.url), HostBench(session)
    facts = partial(worker_facts, device=request.device, kinds=LOCAL_KINDS)

    def run(study_id: str, owner: str, on_progress: StudyProgressSink) -> None:
        study = store.studies.study(study_id)
        study_tools(session, study)  # what this host lacks is the study's end, not a fault of each trial
        try:
            lead_here(store, study, facts(owner), bench, on_progress, notify, gate=study_gate(study))
        finally:
            write_outcome(session, study_id)

    helping = LeaseWorker(
        DirectSource(store.studies, store.leases), facts(new_owner()), bench, notify, wait=Seconds(0.0)
    )
    own = hardware_name(request.device)

    def suits(study_id: str) -> bool:
        return store.leases.kind_of(study_id) in (None, own)

    notify(f"working for {store.name}, slot {request.slot}")
    Worker(store, run, new_owner, notify, help_out=helping.work_once, suits=suits).work(threading.Event(), drain)


def _work_remotely(request: WorkerRequest, url: str, drain: threading.Event, notify: Callable[[str], None]) -> None:
    """Measure trials of a service, one at a time."""
    folder = request.out or state_folder().parent / "studies"
    bench = HostBench(Session(MemoryStudyStore(), url, folder))
    with Client(url, request.key) as client:
        facts = worker_facts(new_owner(), device=request.device, kinds=REMOTE_KINDS)
        notify(f"working for {url} on {', '.join(facts.devices)}, slot {request.slot}")
        LeaseWorker(HttpSource(client), facts, bench, notify).work(drain)


def _conduct(request: WorkerRequest, drain: threading.Event, notify: Callable[[str], None]) -> None:
    """Lead every study of the database for workers elsewhere."""
    session = open_session(request.db, request.out)
    store, over = open_service_store(session.url), threading.Event()
    conductor = Conductor(store, partial(_lead_aside, session, store, over), new_owner, notify)
    notify(f"leading the studies of {store.name} for workers elsewhere")
    try:
        conductor.work(threading.Event(), drain)
    finally:
        over.set()
        conductor.wait()


def _lead_aside(
    session: Session,
    store: ServiceStore,
    over: threading.Event,
    study_id: str,
    owner: str,
    on_progress: StudyProgressSink,
) -> None:
    try:
        with contextlib.suppress(LeadOverError):  # the process ends, and another goes on
            lead_aside(store, study_id, owner, on_progress, over)
    finally:
        write_outcome(session, study_id)


def _await_end(drain: threading.Event) -> None:
    """The service holds the other end of our standard input; it closes when the service ends, however it ends."""
    while sys.stdin.buffer.read(4096):
        pass
    drain.set()

"""Builds the job service: database, door, workers, application, on a socket that is taken first."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from pydantic import Field

from api.jobs.app import create_job_app
from api.jobs.services import JobServices
from api.serve import bind, serve, tls_files
from energyopt import __version__
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import Config
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.source import DirectSource

from .body_policy import BodyPolicy
from .host_devices import HostDevices
from .job_planner import HostPlanner, PlanMaker, StudyOutcomes
from .results import Session, open_session
from .run_worker import state_folder
from .shelf import WorkloadFolder
from .worker_pool import WorkerPool

PORT = 8020
GRACE = Seconds(1.0)
"""Seconds between a signal and the end of the streams; other requests have longer."""
LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


class ApiRequest(Config):
    """What ``energyopt api`` was asked. ``workers`` 0 leaves the work to workers elsewhere.

    With ``remote_workers`` a process of this host leads the studies, for workers that reach the service by HTTP alone.
    """

    host: str = "127.0.0.1"
    port: int = Field(PORT, ge=0, le=65535)
    db: str | None = None
    out: Path | None = None
    workers: int = Field(1, ge=0, le=64)
    remote_workers: bool = False
    insecure: bool = False
    model_roots: tuple[Path, ...] = ()
    kv_transfers: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None


def run_api(request: ApiRequest, notify: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; blocks. Raises ConfigError, StoreError."""
    tls = tls_files(request.tls_certificate, request.tls_key)
    with ExitStack() as stack:
        listener = stack.enter_context(bind(request.host, request.port))
        session = open_session(request.db, request.out)
        store = open_service_store(session.url)
        stack.callback(store.close)
        check_door(request, store)
        devices = HostDevices()
        stack.callback(devices.close)
        conductors = 1 if request.remote_workers else 0
        environment = worker_environment(session, os.environ)
        pool = WorkerPool(request.workers, environment, state_folder(), conductors=conductors)
        app = create_job_app(job_services(request, session, store, devices))
        host, port = listener.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        address = f"{'https' if tls else 'http'}://{name}:{port}"
        pool.start()
        stack.callback(pool.close, notify)
        serve(
            app,
            listener,
            grace=GRACE,
            abort=app.state.hub.close,
            on_ready=lambda: notify(f"studies of {store.name} on {address} (stop with Ctrl-C)"),
            tls=tls,
        )


def check_door(request: ApiRequest, store: ServiceStore) -> None:
    """Raises ConfigError where the service would answer anybody on a network without being told to."""
    if request.insecure or is_loopback(request.host) or store.keys.any_active():
        return
    raise ConfigError(
        f"host = {request.host!r} lets others in, and there is no key yet: make one with "
        "`energyopt keys create NAME --scope admin`, or say --insecure to answer anybody."
    )


def job_services(request: ApiRequest, session: Session, store: ServiceStore, devices: HostDevices) -> JobServices:
    """The bundle for the application."""
    return JobServices(
        studies=store.studies,
        jobs=store.jobs,
        pages=store.pages,
        keys=store.keys,
        tail=store.tail,
        energy=store.energy,
        label_energy=store.label_energy,
        leases=store.leases,
        attached=store.attached,
        sources=lambda tenant: DirectSource(store.studies, store.leases, tenant=tenant),
        planner=HostPlanner(BodyPolicy(request.model_roots, transfers=request.kv_transfers)),
        outcomes=StudyOutcomes(),
        plans=PlanMaker(),
        workloads=WorkloadFolder(session.artifacts.parent / "workloads"),
        devices=devices,
        artifacts=session.artifacts,
        clock=MonotonicClock(),
        version=__version__,
        open_door=request.insecure or is_loopback(request.host),
        hosts=None if request.insecure else LOOPBACK_NAMES,
    )


def worker_environment(session: Session, environment: Mapping[str, str]) -> dict[str, str]:
    """The database goes by the environment: a command line, with its password, everybody on the host could read."""
    return {**environment, "ENERGYOPT_DB": session.url, "ENERGYOPT_OUT": str(session.artifacts)}


def is_loopback(host: str) -> bool:
    """True for a name or address that only this host reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

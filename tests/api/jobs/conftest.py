"""The job service over a database of each kind, without a socket, and on one where a test needs it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.jobs.app import create_job_app
from api.jobs.services import JobServices
from api.serve import Server, bind
from energyopt.compose.body_policy import BodyPolicy
from energyopt.compose.host_devices import HostDevices
from energyopt.compose.job_planner import HostPlanner
from energyopt.compose.job_service import ApiRequest, job_services
from energyopt.compose.results import Session
from energyopt.core.clock import MonotonicClock
from energyopt.core.jobs import Scope
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database to copy: the migrations take longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "e.db"
    open_service_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def store(empty_database: Path, tmp_path: Path) -> Iterator[ServiceStore]:
    shutil.copyfile(empty_database, tmp_path / "e.db")
    opened = open_service_store(f"sqlite:///{tmp_path}/e.db")
    yield opened
    opened.close()


@pytest.fixture
def services(store: ServiceStore, tmp_path: Path) -> JobServices:
    """As ``energyopt api`` makes it on loopback; ASGI clients call themselves "testhost"."""
    session = Session(store.studies, store.name, tmp_path / "studies")
    made = job_services(ApiRequest(), session, store, HostDevices(_no_sensors))
    planner = HostPlanner(BodyPolicy(names=("toy", "smollm2-135m")))  # the toy machine's model is on no disk
    return replace(made, hosts=frozenset(("testhost",)), planner=planner)


def _no_sensors() -> Any:
    from energyopt.core.errors import SensorUnavailableError

    raise SensorUnavailableError("none here")


@pytest.fixture
def app(services: JobServices) -> FastAPI:
    return create_job_app(services)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A caller without a key, which may do everything while there is none."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testhost", timeout=20) as client:
        yield client


@pytest.fixture
def key_for(services: JobServices) -> Callable[..., dict[str, str]]:
    """``key_for(Scope.READ, tenant=...)``: the header of a fresh key."""

    def make(*scopes: Scope, tenant: str | None = None) -> dict[str, str]:
        return {"authorization": f"Bearer {services.keys.create('test', list(scopes), tenant)[1]}"}

    return make


@pytest.fixture
def body() -> dict[str, Any]:
    """A study of the toy machine: a whole specification, as a client would send it."""
    made: dict[str, Any] = toy_spec(trials=6, pairs=2).model_dump(mode="json")
    return made


@pytest.fixture
def run_toy(store: ServiceStore) -> Callable[[str], None]:
    """Run a submitted study of the toy machine to its end, here and now."""

    class NoTime(MonotonicClock):
        def sleep(self, duration: Seconds) -> None:
            """The toy machine is not waited for."""

    def run(study_id: str) -> None:
        clock = NoTime()
        StudyRunner(store.studies, FakeEvaluator(clock), FakePowerController(), clock, f"test {study_id}").run(study_id)

    return run


@pytest.fixture
def serve_jobs() -> Iterator[Callable[[JobServices], str]]:
    """Serve a bundle on a socket of loopback: ``url = serve_jobs(services)``."""
    with ExitStack() as stack:

        def start(services: JobServices) -> str:
            app, listener = create_job_app(services), bind("127.0.0.1", 0)
            ready = threading.Event()
            server = Server(app, grace=Seconds(0.2), abort=app.state.hub.close, on_ready=ready.set)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            assert ready.wait(10)

            def stop() -> None:
                server.stop()
                thread.join(20)
                assert not thread.is_alive()

            stack.callback(stop)
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start

"""Both clients against the real service, and the command line on top of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.jobs.app import create_job_app
from api.jobs.services import JobServices
from api.serve import Server, bind
from energyopt.client import ApiError, AsyncClient, Client, calls
from energyopt.client.stream import EventReader
from energyopt.compose.body_policy import BodyPolicy
from energyopt.compose.host_devices import HostDevices
from energyopt.compose.job_planner import HostPlanner
from energyopt.compose.job_service import ApiRequest, job_services
from energyopt.compose.results import Session
from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError
from energyopt.core.jobs import Scope
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceStore]:
    opened = open_service_store(f"sqlite:///{tmp_path_factory.mktemp('client')}/e.db")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def key(store: ServiceStore) -> str:
    return store.keys.create("test", [Scope.ADMIN])[1]


@pytest.fixture(scope="module")
def url(store: ServiceStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    session = Session(store.studies, store.name, tmp_path_factory.mktemp("studies"))
    services: JobServices = job_services(ApiRequest(), session, store, HostDevices())
    planner = HostPlanner(BodyPolicy(names=("toy",)))
    app, listener = create_job_app(replace(services, planner=planner)), bind("127.0.0.1", 0)
    server = Server(app, grace=Seconds(0.1), abort=app.state.hub.close)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.stop()
    thread.join(20)


def run(store: ServiceStore, study: str) -> None:
    clock = FakeClock()
    StudyRunner(store.studies, FakeEvaluator(clock), FakePowerController(), clock, f"t{study}").run(study)


def test_a_study_from_its_submission_to_its_command(url: str, key: str, store: ServiceStore) -> None:
    body = toy_spec(trials=6, pairs=2).model_dump(mode="json")
    with Client(url, key) as client:
        assert client.send(calls.plan_study(body))["valid_points"] > 0
        made = client.send(calls.create_study({**body, "labels": {"a": "b"}}, idempotency_key="one"))
        assert client.send(calls.create_study({**body, "labels": {"a": "b"}}, idempotency_key="one")).id == made.id
        changed = client.send(calls.change_study(made.id, made.revision, {"labels": {"a": "c"}}))
        assert (changed.revision, changed.labels) == (2, {"a": "c"})
        assert client.send(calls.ask_study(made.id, "pause")).state == "paused"
        assert client.send(calls.ask_study(made.id, "resume")).state == "queued"
        worker = threading.Thread(target=run, args=(store, made.id))
        worker.start()
        assert client.wait(made.id).state == "succeeded"
        worker.join()
        events = list(client.events(made.id))
        ids = [event.id for event in events if event.id is not None]
        assert ids == [event.id for event in store.studies.events(made.id)]
        assert events[-1].event == "end"
        rest = [event.id for event in client.events(made.id, after=ids[3]) if event.id is not None]
        assert rest == ids[4:]
        page = client.send(calls.list_studies(labels={"a": "c"}, states=["succeeded"]))
        assert [study.id for study in page.items] == [made.id]
        assert page.items[0].ended
        trials = client.send(calls.list_trials(made.id, sort="tokens_per_joule"))
        assert trials.items[0].tokens_per_joule is not None
        assert client.send(calls.pareto(made.id)).items
        assert client.send(calls.recommendation(made.id))["trial"]["number"] >= 0
        assert client.send(calls.manifest(made.id)).startswith("energyopt serve toy")
        client.send(calls.delete_study(made.id))
        with pytest.raises(ApiError, match="no study") as gone:
            client.send(calls.get_study(made.id))
    assert (gone.value.status, gone.value.exit_code) == (404, 2)


async def test_the_same_for_asyncio(url: str, key: str, store: ServiceStore) -> None:
    async with AsyncClient(url, key) as client:
        made = await client.send(calls.create_study(toy_spec().model_dump(mode="json")))
        await client.send(calls.ask_study(made.id, "cancel"))
        kinds = [event.event async for event in client.events(made.id)]
        assert (kinds[0], kinds[-1]) == ("state", "end")
        with pytest.raises(ApiError, match="no recommendation") as refused:
            await client.send(calls.recommendation(made.id))
    assert (refused.value.status, refused.value.problem["title"]) == (409, "conflict")


def test_problems_are_told_in_their_words(url: str, key: str) -> None:
    with Client(url, "eo_wrong") as client, pytest.raises(ApiError, match="not correct") as wrong:
        client.send(calls.list_studies())
    assert wrong.value.status == 401
    with Client(url, key) as client, pytest.raises(ApiError) as invalid:
        client.send(calls.create_study({"slos": []}))
    assert invalid.value.problem["errors"] == [{"pointer": "#/model", "detail": "this field is missing"}]
    for address in ("ftp://x", "http://", "http://:"):
        with pytest.raises(ConfigError, match="no address"):
            Client(address)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with Client(f"127.0.0.1:{port}") as client, pytest.raises(ApiError, match="does not answer") as away:
            client.send(calls.list_studies())
    assert away.value.exit_code == 1


def test_events_are_read_from_lines() -> None:
    reader = EventReader()
    lines = ["retry: 2000", "", ": still here", "", "id: 7", "event: state", 'data: {"a":', "data: 1}", ""]
    found = [event for line in lines if (event := reader.feed(line)) is not None]
    assert [(event.id, event.event, event.data) for event in found] == [(7, "state", {"a": 1})]
    assert reader.last == 7
    assert reader.feed("x" * 1000) is None
    with pytest.raises(ValueError, match="longer"):
        reader.feed("x" * (2**20 + 1))


def test_the_command_line_asks_a_service(url: str, key: str, store: ServiceStore, tmp_path: Path) -> None:
    study = store.jobs.submit(toy_spec(trials=6, pairs=2), {}, labels={})[0]
    run(store, study)
    command = [sys.executable, "-c", "from energyopt.cli.main import main; main()", "studies"]
    environment = {"ENERGYOPT_API": url, "ENERGYOPT_API_KEY": key, "PATH": "", "HOME": str(tmp_path)}

    def say(*words: str) -> str:
        done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert study in [one["id"] for one in json.loads(say("list", "--json"))]
    assert study in say("list")
    shown = json.loads(say("show", study, "--json"))
    assert (shown["study"]["state"], shown["command"].split()[0]) == ("succeeded", "energyopt")
    assert "energyopt serve toy" in say("show", "latest")

"""Whatever the schema allows, and what it does not, is answered: never a fault, and errors always as problems."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings

from api.jobs.app import create_job_app
from api.jobs.services import JobLimits
from energyopt.compose.host_devices import HostDevices
from energyopt.compose.job_service import ApiRequest, job_services
from energyopt.compose.results import Session
from energyopt.core.errors import SensorUnavailableError
from energyopt.store.service_store import open_service_store
from tuner.fake_study import toy_spec

EXAMPLES = 3


def no_sensors() -> Any:
    raise SensorUnavailableError("none here")


@pytest.fixture(params=["sqlite", "postgresql"])
def any_app(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The service over a database of each kind, with a study in it."""
    url = f"sqlite:///{tmp_path}/e.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    store = open_service_store(url)
    store.jobs.submit(toy_spec(), {}, labels={"a": "b"})
    session = Session(store.studies, store.name, tmp_path / "studies")
    made = job_services(ApiRequest(), session, store, HostDevices(no_sensors))
    limits = JobLimits(rate=1e9, burst=10**9)
    yield create_job_app(replace(made, hosts=None, limits=limits)), store.studies.studies()[0].id
    store.close()


def test_the_schema_is_complete_and_has_examples(app: FastAPI) -> None:
    document = json.dumps(app.openapi())
    for reference in {part.split('"')[0] for part in document.split("#/components/schemas/")[1:]}:
        assert reference in app.openapi()["components"]["schemas"], reference
    create = app.openapi()["paths"]["/v1/studies"]["post"]
    example = create["requestBody"]["content"]["application/json"]["examples"]["model and SLO"]["value"]
    assert example["slos"]
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            assert operation["responses"]["default"]["content"], (path, method)
            assert operation["summary"], (path, method)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_a_client_sends_is_a_fault(any_app: tuple[FastAPI, str]) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    app, study = any_app
    schema = schemathesis.openapi.from_dict(app.openapi())
    seen = 0
    with TestClient(app, base_url="http://testhost", raise_server_exceptions=True) as client:
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.endswith("/events"):
                continue  # an endless stream; test_events has it
            check = _checker(operation, client, study)
            check()
            seen += 1
    assert seen >= 28


def _checker(operation: Any, client: TestClient, study: str) -> Callable[[], None]:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        if "study_id" in case.path_parameters:
            case.path_parameters["study_id"] = study  # one that exists gets further
        sent = case.as_transport_kwargs(base_url="http://testhost")
        url = str(sent.pop("url"))
        sent = {name: sent[name] for name in ("params", "json", "headers") if name in sent}
        headers = {name: value for name, value in dict(sent.pop("headers", {})).items() if _sendable(name, value)}
        reply = client.request(case.method, url, headers=headers, **sent)
        assert reply.status_code < 500, (case.method, url, reply.text)
        if reply.status_code >= 400:
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.json()["status"] == reply.status_code

    return check


def _sendable(name: Any, value: Any) -> bool:
    """A header that a client could put on the wire; the name of the host is not what is tested."""
    return str(name).isascii() and str(value).isascii() and str(name).lower() != "host"

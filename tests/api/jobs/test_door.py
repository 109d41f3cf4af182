"""Who gets in: every route with every scope, foreign sites and names, tenants, the rate, the size, and the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.jobs.app import create_job_app
from api.jobs.rate import MAX_CALLERS, RateLimit
from api.jobs.routes.files import read_within
from api.jobs.services import JobLimits, JobServices
from energyopt.compose.job_service import ApiRequest, check_door, is_loopback
from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.jobs import Scope
from energyopt.core.study import Artifact, StudyState
from energyopt.store.service_store import ServiceStore

Key = Callable[..., dict[str, str]]

NEEDED = {
    **dict.fromkeys(
        (
            "GET /v1/studies",
            "GET /v1/studies/{study_id}",
            "GET /v1/studies/{study_id}/trials",
            "GET /v1/studies/{study_id}/trials/{number}",
            "GET /v1/studies/{study_id}/pareto",
            "GET /v1/studies/{study_id}/recommendation",
            "GET /v1/studies/{study_id}/manifest",
            "GET /v1/studies/{study_id}/events",
            "GET /v1/studies/{study_id}/artifacts",
            "GET /v1/studies/{study_id}/artifacts/{name}",
            "GET /v1/studies/{study_id}/logs",
            "GET /v1/devices",
            "GET /v1/devices/events",
            "GET /v1/energy",
            "GET /v1/energy/sensors",
            "GET /v1/caps",
            "GET /v1/workers",
            "GET /v1/workloads",
            "GET /v1/workloads/{name}",
        ),
        Scope.READ,
    ),
    **dict.fromkeys(
        (
            "POST /v1/studies",
            "PATCH /v1/studies/{study_id}",
            "DELETE /v1/studies/{study_id}",
            "POST /v1/studies/{study_id}:cancel",
            "POST /v1/studies/{study_id}:pause",
            "POST /v1/studies/{study_id}:resume",
            "POST /v1/studies/{study_id}/trials",
            "POST /v1/leases",
            "PUT /v1/leases/{lease_id}",
            "POST /v1/leases/{lease_id}:complete",
            "POST /v1/leases/{lease_id}:fail",
            "POST /v1/leases/{lease_id}:fault",
            "DELETE /v1/leases/{lease_id}",
            "POST /v1/plans",
            "PUT /v1/workloads/{name}",
            "DELETE /v1/workloads/{name}",
        ),
        Scope.TUNE,
    ),
    "POST /v1/caps": Scope.CONTROL,
    "DELETE /v1/caps": Scope.CONTROL,
    "GET /v1/keys": Scope.ADMIN,
    "POST /v1/keys": Scope.ADMIN,
    "DELETE /v1/keys/{key_id}": Scope.ADMIN,
    "GET /v1/audit": Scope.ADMIN,
    "GET /health": None,
    "GET /version": None,
}
"""Every route and the scope that it asks for; None asks for nothing."""


def routes(app: FastAPI) -> list[str]:
    """The routes that the service describes, which are all it has under /v1."""
    described = app.openapi()["paths"]
    return [f"{method.upper()} {path}" for path, operations in described.items() for method in operations]


async def test_every_route_asks_every_scope(http: httpx.AsyncClient, app: FastAPI, key_for: Key) -> None:
    """401 without a key, 403 with one of too little scope, and never either with enough."""
    assert set(routes(app)) == set(NEEDED) | {name for name in routes(app) if name.split()[1].startswith("/page")}
    assert not [r for r in app.routes if isinstance(r, APIRoute) and not r.include_in_schema and "/v1" in r.path]
    app.state.hub.close()  # a stream would not end
    keys = {scope: key_for(scope) for scope in Scope}
    for name, scope in NEEDED.items():
        method, template = name.split()
        path = template.format(study_id="0" * 12, number=0, name="x", key_id="x", lease_id="x")
        anonymous = await http.request(method, path)
        assert (anonymous.status_code == 401) is (scope is not None), name
        wrong = await http.request(method, path, headers={"authorization": "Bearer eo_no"})
        assert (wrong.status_code == 401) is (scope is not None), name
        for own, header in keys.items():
            if scope is Scope.CONTROL and scope in own.included:
                continue  # would look for this machine's GPUs; its own test follows
            reply = await http.request(method, path, headers=header)
            allowed = scope is None or scope in own.included
            assert (reply.status_code != 403) is allowed, (name, own, reply.text)
            assert reply.status_code not in (401, 500), (name, own, reply.text)


async def test_control_reaches_the_devices(services: JobServices, key_for: Key, store: ServiceStore) -> None:
    class Devices:
        def look(self) -> list[dict[str, object]]:
            return [{"device": "GPU-1", "lease": {"id": "1"}}, {"device": "GPU-2", "lease": None}]

        def acquire(self, devices: Any, cap: float | None, sm_clock: float | None, ttl: float) -> object:
            return {"devices": list(devices), "cap": cap, "remaining": ttl}

        def release(self, devices: Any) -> list[str]:
            return [f"{devices} put back"]

    app = create_job_app(replace(services, devices=Devices()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testhost") as http:
        control = key_for(Scope.CONTROL)
        taken = await http.post("/v1/caps", json={"devices": ["GPU-1"], "cap": 300, "ttl": 60}, headers=control)
        assert (taken.status_code, taken.json()["lease"]["cap"]) == (201, 300)
        held = await http.get("/v1/caps", headers=control)
        assert [one["device"] for one in held.json()["items"]] == ["GPU-1"]
        freed = await http.delete("/v1/caps", params={"device": "GPU-1"}, headers=control)
        assert freed.json()["said"] == ["['GPU-1'] put back"]
        for wrong in ({"ttl": 60}, {"cap": -1, "ttl": 60}, {"cap": 300}, {"cap": 300, "ttl": 1e9}):
            assert (await http.post("/v1/caps", json=wrong, headers=control)).status_code in (400, 422)
        assert (
            await http.post("/v1/caps", json={"cap": 300, "ttl": 1}, headers=key_for(Scope.TUNE))
        ).status_code == 403
    actions = [(entry.action, entry.target) for entry in store.keys.audit()]
    assert actions == [("refused", "POST /v1/caps"), ("release caps", "GPU-1"), ("cap", "GPU-1")]


async def test_the_door_is_open_until_there_is_a_key(http: httpx.AsyncClient, services: JobServices) -> None:
    assert (await http.get("/v1/studies")).status_code == 200
    made = await http.post("/v1/keys", json={"name": "first", "scopes": ["admin"]})
    assert made.status_code == 201
    assert (await http.get("/v1/studies")).status_code == 401
    header = {"authorization": f"Bearer {made.json()['secret']}"}
    assert (await http.get("/v1/studies", headers=header)).status_code == 200
    listed = (await http.get("/v1/keys", headers=header)).text
    assert made.json()["secret"].split("_", 2)[2] not in listed
    wrong = await http.post("/v1/keys", json={"name": "x", "scopes": ["root"]}, headers=header)
    assert (wrong.status_code, "read" in wrong.json()["detail"]) == (400, True)
    here = f"/v1/keys/{made.json()['key']['id']}"
    assert (await http.delete(here, headers=header)).status_code == 200
    assert (await http.get("/v1/studies", headers=header)).status_code == 401


async def test_a_door_that_is_not_open_stays_shut_without_keys(services: JobServices) -> None:
    app = create_job_app(replace(services, open_door=False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testhost") as http:
        assert (await http.get("/v1/studies")).status_code == 401


async def test_foreign_sites_and_names_are_turned_away(http: httpx.AsyncClient, key_for: Key) -> None:
    """A page of another site in the user's browser, and a name of another site that leads here."""
    evil = {"origin": "https://evil.example"}
    assert (await http.post("/v1/studies", json={}, headers=evil)).status_code == 403
    assert (await http.post("/v1/studies", json={}, headers={"origin": "http://testhost"})).status_code == 422
    assert (await http.get("/v1/studies", headers={"host": "evil.example"})).status_code == 403
    header = key_for(Scope.READ)
    assert (await http.get("/v1/studies", headers={"host": "name.of.ours", **header})).status_code == 200


async def test_a_tenant_sees_its_own(http: httpx.AsyncClient, body: dict[str, Any], key_for: Key) -> None:
    mine, other = key_for(Scope.TUNE, tenant="a"), key_for(Scope.TUNE, tenant="b")
    everybody = key_for(Scope.READ)
    made = (await http.post("/v1/studies", json=body, headers=mine)).json()
    assert made["tenant"] == "a"
    here = f"/v1/studies/{made['id']}"
    for path in ("", "/trials", "/pareto", "/recommendation", "/manifest", "/events", "/logs", "/artifacts"):
        assert (await http.get(here + path, headers=other)).status_code == 404, path
    assert (await http.post(f"{here}:cancel", headers=other)).status_code == 404
    assert (await http.get("/v1/studies", headers=other)).json()["items"] == []
    for header in (mine, everybody):
        assert (await http.get(here, headers=header)).status_code == 200
        assert len((await http.get("/v1/studies", headers=header)).json()["items"]) == 1


async def test_more_than_the_rate_has_to_wait(services: JobServices) -> None:
    app = create_job_app(replace(services, limits=JobLimits(rate=0.001, burst=3)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testhost") as http:
        statuses = [(await http.get("/version")).status_code for _ in range(5)]
        late = await http.get("/version")
    assert statuses == [200, 200, 200, 429, 429]
    assert int(late.headers["retry-after"]) > 100
    assert late.json()["type"] == "urn:energyopt:problem:too-many-requests"


def test_a_bucket_fills_again_and_their_number_is_bounded() -> None:
    clock = FakeClock()
    limit = RateLimit(clock, rate=2.0, burst=2)
    assert [limit.take("a"), limit.take("a")] == [0, 0]
    assert limit.take("a") == pytest.approx(0.5)
    assert limit.take("b") == 0
    clock.advance(0.5)
    assert (limit.take("a"), limit.take("a") > 0) == (0, True)
    for number in range(MAX_CALLERS + 10):
        limit.take(str(number))
    assert len(limit._buckets) == MAX_CALLERS


async def test_a_body_has_a_most(services: JobServices) -> None:
    app = create_job_app(replace(services, limits=JobLimits(max_body_bytes=100)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testhost") as http:
        declared = await http.post("/v1/studies", json={"x": "y" * 200})

        async def pieces() -> Any:
            for _ in range(20):
                yield b" " * 20

        streamed = await http.post("/v1/studies", content=pieces(), headers={"content-type": "application/json"})
    for reply in (declared, streamed):
        assert (reply.status_code, reply.headers["content-type"]) == (413, "application/problem+json")


async def test_artifacts_and_logs_stay_in_the_folder_of_their_study(
    http: httpx.AsyncClient, body: dict[str, Any], services: JobServices, tmp_path: Path
) -> None:
    made = (await http.post("/v1/studies", json=body)).json()["id"]
    folder = services.artifacts / made
    (folder / "logs").mkdir(parents=True)
    (folder / "report.html").write_text("<p>ours</p>")
    secret = tmp_path / "secret"
    secret.write_text("theirs")
    (folder / "link").symlink_to(secret)
    (folder / "logs" / "trial-1.log").write_text("one\ntwo\nthree\n")
    (folder / "logs" / "trial-2.log").symlink_to(secret)
    for name, path in [
        ("report.html", folder / "report.html"),
        ("outside", secret),
        ("link", folder / "link"),
        ("up", folder / ".." / ".." / "secret"),
        ("folder", folder / "logs"),
        ("gone", folder / "gone"),
    ]:
        artifact = Artifact(name=name, path=str(path), media_type="text/html", sha256="", bytes=1)
        services.studies.add_artifact(made, artifact)
    good = await http.get(f"/v1/studies/{made}/artifacts/report.html")
    assert (good.status_code, good.text) == (200, "<p>ours</p>")
    assert good.headers["content-disposition"] == "attachment"
    for name in ("outside", "link", "up", "folder", "gone", "none"):
        assert (await http.get(f"/v1/studies/{made}/artifacts/{name}")).status_code == 404, name
    logs = (await http.get(f"/v1/studies/{made}/logs", params={"tail": 2})).text
    assert "two\nthree" in logs
    assert "one" not in logs
    assert "theirs" not in logs


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/environ", "/", "\0", "x" * 5000])
def test_what_is_no_plain_file_in_the_folder_is_not_read(tmp_path: Path, path: str) -> None:
    with pytest.raises(NotFoundError):
        read_within(tmp_path, Path(path))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("x", False)],
)
def test_other_addresses_need_a_key_or_a_word(store: ServiceStore, host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    if loopback:
        check_door(ApiRequest(host=host), store)
        return
    with pytest.raises(ConfigError, match="keys create"):
        check_door(ApiRequest(host=host), store)
    check_door(ApiRequest(host=host, insecure=True), store)
    store.keys.create("a", [Scope.ADMIN])
    check_door(ApiRequest(host=host), store)


async def test_a_fault_of_ours_tells_nothing(http: httpx.AsyncClient, app: FastAPI, services: JobServices) -> None:
    @app.get("/page/fault")
    def fault() -> None:
        raise RuntimeError("the secret")

    reply = await http.get("/page/fault")
    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in reply.text


async def test_actions_are_on_record(http: httpx.AsyncClient, body: dict[str, Any], store: ServiceStore) -> None:
    made = (await http.post("/v1/studies", json=body)).json()["id"]
    await http.post(f"/v1/studies/{made}:pause")
    await http.post(f"/v1/studies/{made}:pause")
    await http.post(f"/v1/studies/{made}:cancel")
    page = (await http.get("/v1/audit", params={"limit": 2})).json()
    assert [entry["action"] for entry in page["items"]] == ["cancel", "pause"]
    rest = (await http.get("/v1/audit", params={"cursor": page["next"]})).json()
    assert ([entry["action"] for entry in rest["items"]], rest["next"]) == (["submit"], None)
    assert store.studies.study(made).state is StudyState.CANCELLED

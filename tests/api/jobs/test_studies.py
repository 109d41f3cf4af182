"""A study over HTTP, from its submission to its deletion."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import NoFeasibleError
from energyopt.core.slo import Slo
from energyopt.core.study import Origin, StudyState, TrialOutcome
from energyopt.store.service_store import ServiceStore
from tuner.fake import FakeEvaluator
from tuner.fake_study import TOY_SLOS

Body = dict[str, Any]


async def submit(http: httpx.AsyncClient, body: Body, **headers: str) -> httpx.Response:
    return await http.post("/v1/studies", json=body, headers=headers)


async def test_a_study_is_submitted_and_waits(http: httpx.AsyncClient, body: Body, store: ServiceStore) -> None:
    reply = await submit(http, {**body, "labels": {"team": "a"}})
    assert reply.status_code == 202
    made = reply.json()
    assert (reply.headers["location"], reply.headers["retry-after"]) == (f"/v1/studies/{made['id']}", "2")
    assert (made["state"], made["labels"], made["slos"]) == ("queued", {"team": "a"}, list(TOY_SLOS))
    assert store.jobs.waiting() == [made["id"]]
    seen = await http.get(reply.headers["location"])
    assert (seen.status_code, seen.json(), seen.headers["etag"]) == (200, made, '"r1"')
    assert [entry.action for entry in store.keys.audit()] == ["submit"]


async def test_a_dry_run_stores_nothing(http: httpx.AsyncClient, body: Body, store: ServiceStore) -> None:
    reply = await http.post("/v1/studies?dry_run=true", json=body)
    assert reply.status_code == 200
    assert reply.json()["valid_points"] + sum(reply.json()["removed"].values()) == 18
    assert reply.json()["expected_seconds"] > 0
    assert store.studies.studies() == []


async def test_a_repeated_request_makes_one_study(http: httpx.AsyncClient, body: Body) -> None:
    first = await submit(http, body, **{"idempotency-key": "k"})
    second = await submit(http, body, **{"idempotency-key": "k"})
    assert (first.status_code, second.status_code) == (202, 202)
    assert second.headers["location"] == first.headers["location"]
    other = await submit(http, {**body, "name": "other"}, **{"idempotency-key": "k"})
    assert (other.status_code, other.headers["content-type"]) == (422, "application/problem+json")
    assert len((await http.get("/v1/studies")).json()["items"]) == 1


@pytest.mark.parametrize(
    ("change", "pointers"),
    [
        ({"budget": {"trials": 0}}, ["#/budget/trials"]),
        ({"budget": {"trials": 0}, "seed": "x"}, ["#/budget/trials", "#/seed"]),
        ({"nonsense": 1}, ["#/nonsense"]),
        ({"workload": None}, ["#/workload"]),
        ({"labels": {"UPPER": "x"}}, ["#/labels/UPPER/[key]"]),
        ({"labels": {"ok": 3}}, ["#/labels/ok"]),
    ],
)
async def test_complaints_point_into_the_body(
    http: httpx.AsyncClient, body: Body, change: Body, pointers: list[str]
) -> None:
    reply = await submit(http, {**body, **change})
    problem = reply.json()
    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
    assert (problem["type"], problem["status"]) == ("urn:energyopt:problem:invalid-body", 422)
    assert [one["pointer"] for one in problem["errors"]] == pointers
    assert all(one["detail"] for one in problem["errors"])


REACHING = {"model": "toy", "kv_transfer": {"transport": "tcp", "host": "0.0.0.0"}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slos": ["ttft:p90"]}, "ttft:p90"),
        ({"space": {"knobs": [{"path": "decode.engine.model", "values": ["a", "b"]}]}}, "not allowed here"),
        ({"baseline": {"decode": {"engine": {"model": "/etc"}}}}, "--model-root"),
        ({"baseline": {"decode": {"engine": {"model": "~"}}}}, "--model-root"),
        ({"baseline": {"decode": {"engine": {"model": "pyproject.toml"}}}}, "--model-root"),
        ({"baseline": {"decode": {"engine": {"model": "toy", "kv_transfer": {}}}}}, "kv_transfer"),
        ({"baseline": {"decode": {"engine": {"model": "toy"}}, "prefill": {"engine": REACHING}}}, "kv_transfer"),
        ({"space": {"knobs": [{"path": "decode.engine.kv_transfer.port", "values": [0, 80]}]}}, "not allowed here"),
        ({"space": {"knobs": [{"path": "decode.engine.kv_transfer.pool", "values": [None, "x"]}]}}, "not allowed here"),
        ({"space": {"knobs": [{"path": "decode.engine.kv.tiers", "values": ["none", "disk:1GiB@/x"]}]}}, "1GiB@/x"),
        ({"space": {"knobs": [{"path": "decode.engine.kv.tiers", "values": ["none", "shared:1GiB@h:1"]}]}}, "h:1"),
    ],
)
async def test_what_the_host_does_not_allow_is_refused(
    http: httpx.AsyncClient, body: Body, change: Body, words: str
) -> None:
    reply = await submit(http, {**body, **change})
    assert reply.status_code == 400
    assert words in reply.json()["detail"]


async def test_a_request_for_a_model_is_planned(http: httpx.AsyncClient) -> None:
    refused: list[tuple[Body, str]] = [
        ({"model": "/etc/passwd"}, "--model-root"),
        ({"model": "none-such"}, "none-such"),
        ({"model": "smollm2-135m", "meter": "replay:/etc/passwd"}, "replay"),
        ({"model": "smollm2-135m", "footprint": {"grid": "/etc/passwd"}}, "grid"),
        ({"model": "smollm2-135m", "kv": {"tiers": [{"kind": "disk", "bytes_per_host": 1024, "path": "/x"}]}}, "path"),
    ]
    for wrong, words in refused:
        reply = await submit(http, wrong)
        assert reply.status_code in (400, 404, 422), reply.text
        assert words in reply.json()["detail"], reply.text
    reply = await submit(http, {"slos": ["ttft:p90<1s"]})
    assert [one["pointer"] for one in reply.json()["errors"]] == ["#/model"]


async def test_a_body_must_be_said_to_be_json(http: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = await http.post("/v1/studies", content=b"{}", headers={"content-type": kind})
        assert reply.status_code == 415, kind


async def test_a_body_must_be_an_object(http: httpx.AsyncClient) -> None:
    for content in (b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000, b'{"a": NaN}'):
        reply = await http.post("/v1/studies", content=content, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["errors"][0]["pointer"]) == (422, "#"), content[:10]


async def test_lists_are_read_page_by_page(http: httpx.AsyncClient, body: Body) -> None:
    ids = [(await submit(http, {**body, "labels": {"n": str(n % 2)}})).json()["id"] for n in range(5)]
    seen, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await http.get("/v1/studies", params=query)).json()
        seen += [one["id"] for one in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    labelled = (await http.get("/v1/studies", params={"label": "n=1", "state": ["queued", "failed"]})).json()
    assert [one["id"] for one in labelled["items"]] == [ids[3], ids[1]]
    assert (await http.get("/v1/studies", params={"state": "running"})).json() == {"items": [], "next": None}
    for wrong in ({"cursor": "x"}, {"cursor": "WyJhIiwgWzFdXQ"}, {"label": "n"}, {"limit": 0}, {"state": "no"}):
        reply = await http.get("/v1/studies", params=wrong)
        assert reply.status_code in (400, 422), wrong
        assert reply.headers["content-type"] == "application/problem+json"


async def test_a_change_needs_what_was_seen(http: httpx.AsyncClient, body: Body, store: ServiceStore) -> None:
    here = (await submit(http, body)).headers["location"]
    patch = {"budget": {"trials": 9}, "labels": {"a": "b"}}
    assert (await http.patch(here, json=patch)).status_code == 428
    assert (await http.patch(here, json=patch, headers={"if-match": '"r7"'})).status_code == 412
    assert (await http.patch(here, json=patch, headers={"if-match": "W/x"})).status_code == 400
    changed = await http.patch(here, json=patch, headers={"if-match": '"r1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"r2"')
    assert (changed.json()["budget"]["trials"], changed.json()["labels"]) == (9, {"a": "b"})
    assert store.studies.study(changed.json()["id"]).spec.budget.trials == 9
    wrong = await http.patch(here, json={"name": "x"}, headers={"if-match": '"r2"'})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "#/name")


ASKED: list[tuple[str, str, str | None]] = [
    ("queued", "cancel", "cancelled"),
    ("planning", "cancel", "cancelling"),
    ("running", "cancel", "cancelling"),
    ("verifying", "cancel", "cancelling"),
    ("pausing", "cancel", "cancelling"),
    ("paused", "cancel", "cancelled"),
    ("failed", "cancel", "cancelled"),
    ("cancelling", "cancel", "cancelling"),
    ("cancelled", "cancel", "cancelled"),
    ("succeeded", "cancel", None),
    ("no_feasible", "cancel", None),
    ("queued", "pause", "paused"),
    ("running", "pause", "pausing"),
    ("verifying", "pause", "pausing"),
    ("pausing", "pause", "pausing"),
    ("paused", "pause", "paused"),
    ("cancelling", "pause", None),
    ("succeeded", "pause", None),
    ("paused", "resume", "queued"),
    ("failed", "resume", "queued"),
    ("running", "resume", "running"),
    ("pausing", "resume", None),
    ("cancelled", "resume", None),
]
"""The state found, what is asked, and the state then; None for what is refused."""


async def test_what_may_be_asked_of_a_study(http: httpx.AsyncClient, body: Body, store: ServiceStore) -> None:
    made = (await submit(http, body)).json()["id"]
    for found, word, then in ASKED:
        store.studies.set_state(made, StudyState(found))
        reply = await http.post(f"/v1/studies/{made}:{word}")
        assert reply.status_code == (409 if then is None else 202), (found, word)
        assert store.studies.study(made).state == (found if then is None else then), (found, word)


async def test_only_a_study_that_has_ended_is_deleted(http: httpx.AsyncClient, body: Body) -> None:
    here = (await submit(http, body)).headers["location"]
    refused = await http.delete(here)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:energyopt:problem:not-allowed")
    await http.post(f"{here}:cancel")
    assert (await http.delete(here)).status_code == 204
    assert (await http.get(here)).status_code == 404


async def test_nothing_but_a_whole_id_names_a_study(http: httpx.AsyncClient, body: Body) -> None:
    await submit(http, body)
    for name in ("latest", "0" * 12, "x", "%00", "..%2f..", "a" * 5000):
        reply = await http.get(f"/v1/studies/{name}")
        assert (reply.status_code, reply.headers["content-type"]) == (404, "application/problem+json"), name


async def test_results_of_a_finished_study(http: httpx.AsyncClient, body: Body, run_toy: Callable[[str], None]) -> None:
    made = (await submit(http, body)).json()["id"]
    here = f"/v1/studies/{made}"
    early = await http.get(f"{here}/recommendation")
    assert (early.status_code, early.json()["type"]) == (409, "urn:energyopt:problem:conflict")
    run_toy(made)
    view = (await http.get(here)).json()
    assert view["state"] == "succeeded"
    assert sum(view["trials"].values()) >= 6
    trials = (await http.get(f"{here}/trials", params={"sort": "tokens_per_joule", "outcome": "feasible"})).json()
    figures = [one["tokens_per_joule"] for one in trials["items"]]
    assert figures == sorted(figures, reverse=True)
    front = (await http.get(f"{here}/pareto")).json()
    assert (front["x"], front["y"]) == ("tokens_per_joule", "tpot_p90")
    assert front["items"]
    found = (await http.get(f"{here}/recommendation")).json()
    assert found["recommendation"]["trial"] == found["trial"]["number"] == view["recommendation"]["trial"]
    assert (found["baseline"]["number"], found["deployment"]["decode"]["engine"]["model"]) == (0, "toy")
    one = (await http.get(f"{here}/trials/0")).json()
    assert one["result"]["energy"]["sources"] == ["simulated"]
    assert (await http.get(f"{here}/trials/99999")).status_code == 404
    manifest = (await http.get(f"{here}/manifest")).json()
    assert manifest["study"]["id"] == made
    assert "vllm serve toy" in (await http.get(f"{here}/manifest", params={"format": "vllm"})).text
    assert (await http.get(f"{here}/manifest", params={"format": "no"})).status_code == 422


async def test_nothing_feasible_is_told_with_what_came_nearest(
    http: httpx.AsyncClient, body: Body, run_toy: Callable[[str], None]
) -> None:
    made = (await submit(http, {**body, "slos": ["ttft:p90<1ms"]})).json()["id"]
    with pytest.raises(Exception, match="nearest"):
        run_toy(made)
    reply = await http.get(f"/v1/studies/{made}/recommendation")
    problem = reply.json()
    assert (reply.status_code, problem["type"]) == (409, "urn:energyopt:problem:no-feasible-trial")
    assert "nearest" in problem["detail"]
    misses = [one["violations"]["ttft:p90<1ms"] for one in problem["nearest"]]
    assert misses == sorted(misses)
    assert len(misses) == 3


async def test_a_configuration_can_be_measured_next(
    http: httpx.AsyncClient, body: Body, run_toy: Callable[[str], None], store: ServiceStore
) -> None:
    made = (await submit(http, body)).json()["id"]
    space = body["space"]["knobs"]
    params = {knob["path"]: knob["values"][0] for knob in space}
    early = await http.post(f"/v1/studies/{made}/trials", json={"params": params})
    assert early.status_code == 409
    spec = store.studies.study(made).spec
    store.studies.add_trial(made, params, spec.baseline, Origin.BASELINE)
    reply = await http.post(f"/v1/studies/{made}/trials", json={"params": params})
    assert (reply.status_code, reply.json()["origin"], reply.json()["number"]) == (202, "user", 1)
    wrong = await http.post(f"/v1/studies/{made}/trials", json={"params": {"a": 1}})
    assert wrong.status_code == 400
    with contextlib.suppress(NoFeasibleError):
        run_toy(made)
    assert (await http.get(f"/v1/studies/{made}/trials/1")).json()["state"] == "done"


async def test_unknown_routes_and_methods_are_problems(http: httpx.AsyncClient) -> None:
    for method, path, status in [("GET", "/v1/none", 404), ("PUT", "/v1/studies", 405)]:
        reply = await http.request(method, path)
        assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")
        assert reply.json()["status"] == status


async def test_what_was_measured_elsewhere_is_attached_and_learned_from(
    http: httpx.AsyncClient, body: Body, run_toy: Callable[[str], None], store: ServiceStore
) -> None:
    made = (await submit(http, body)).json()["id"]
    here, spec = f"/v1/studies/{made}/trials", store.studies.study(made).spec
    params = {knob["path"]: knob["values"][0] for knob in body["space"]["knobs"]}
    store.studies.add_trial(made, params, spec.baseline, Origin.BASELINE)
    slos = [Slo.parse(slo) for slo in spec.slos]
    run = FakeEvaluator(FakeClock()).run(spec.baseline, spec.workload, spec.plan, slos, lambda progress: None)
    result = json.loads(run.model_dump_json())
    reading = {**result["readings"][0], "joules": 1.0}
    wrong: list[tuple[Body, str]] = [
        ({"result": {**result, "readings": [reading]}}, "sum to 1 J"),
        ({"result": {**result, "readings": [], "energy": None}}, "readings"),
        ({"result": {**result, "simulated": False}}, "has an error"),
        ({"result": {**result, "verdicts": result["verdicts"][:1]}}, "verdicts"),
        ({"result": {**result, "failed_requests": 1000}}, "1000 of 40"),
        ({"result": {**result, "window": 0}}, "window"),
        ({"result": result, "outcome": "oom", "error": "x"}, "not both"),
        ({"outcome": "oom"}, "outcome and error"),
        ({"outcome": "feasible", "error": "x"}, "feasible"),
    ]
    for change, words in wrong:
        reply = await http.post(here, json={"params": params, **change})
        assert reply.status_code in (400, 422), words
        assert words in reply.text, reply.text
    assert len(store.studies.trials(made)) == 1, "nothing of it is kept"
    attached = await http.post(here, json={"params": params, "result": result})
    failed = await http.post(here, json={"params": params, "outcome": "oom", "error": "too big"})
    assert (attached.status_code, failed.status_code) == (201, 201)
    assert (attached.json()["state"], attached.json()["origin"], attached.json()["attempts"]) == ("done", "user", 0)
    assert store.studies.trials(made)[1].result == run
    assert store.studies.trials(made)[2].outcome is TrialOutcome.OOM
    assert [entry.action for entry in store.keys.audit()][:2] == ["attach", "attach"]
    with contextlib.suppress(NoFeasibleError):
        run_toy(made)
    assert store.studies.study(made).state.terminal
    attempts = [trial.attempts for trial in store.studies.trials(made)]
    assert (attempts[0], attempts[1:3]) == (1, [0, 0]), "they are not measured again"


async def test_energy_is_told_by_label(
    http: httpx.AsyncClient, body: Body, run_toy: Callable[[str], None], store: ServiceStore
) -> None:
    made = (await submit(http, {**body, "labels": {"team": "search"}})).json()["id"]
    await submit(http, {**body, "labels": {"team": "ads"}})
    run_toy(made)
    window: Body = {"start": "2020-01-01T00:00:00Z", "end": "2100-01-01T00:00:00Z", "resolution": 31_000_000}
    found = (await http.get("/v1/energy", params={**window, "label": "team=search"})).json()["items"]
    trials = [trial for trial in store.studies.trials(made) if trial.result]
    assert sum(one["joules"] for one in found) == pytest.approx(sum(t.result.joules or 0 for t in trials if t.result))
    assert {tuple(one["sources"]) for one in found} == {("simulated",)}
    assert sum(one["trials"] for one in found) == len(trials)
    assert (await http.get("/v1/energy", params={**window, "label": "team=ads"})).json()["items"] == []
    none = {**window, "label": "team=search", "device": "GPU-9"}
    assert (await http.get("/v1/energy", params=none)).json()["items"] == []
    for wrong in ({"label": "team"}, {"label": "=x"}, {"label": "team=search", "host": "h"}):
        assert (await http.get("/v1/energy", params={**window, **wrong})).status_code == 400

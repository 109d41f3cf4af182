"""What surrounds the routes: ids, body limit, key, probes, metrics, description."""

from __future__ import annotations

from typing import Any

import pytest

from api.fake import ScriptedEngine
from api.services import Limits
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes
from engine.batch import CacheShape

SMALL = Limits(max_body_bytes=1000)


async def test_the_request_id_is_echoed_or_made(in_process: Any) -> None:
    async with in_process() as http:
        assert (await http.get("/health", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
        made = [(await http.get("/nothing")).headers["x-request-id"] for _ in range(2)]
        assert made[0] != made[1]
        for odd in ("a" * 201, "two words", "", "é"):
            assert (await http.get("/health", headers={"x-request-id": odd.encode()})).headers["x-request-id"] != odd


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_body_above_the_limit_is_refused_however_it_is_sent(serve_it: Any, path: str) -> None:
    served = serve_it(limits=SMALL)
    big = b'{"prompt": "' + b"x" * 3_000_000 + b'"}'
    declared = served.http.post(path, content=big)
    chunked = served.http.post(path, content=iter([big[:500], big[500:1500], big[1500:3000]]))
    for reply in (declared, chunked):
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "request_too_large"
        assert "1000 bytes" in reply.json()["error"]["message"]
    assert served.http.get("/health").status_code == 200


async def test_a_body_at_the_limit_is_read(in_process: Any) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'
    async with in_process(limits=Limits(max_body_bytes=len(body))) as http:
        assert (await http.post("/v1/completions", content=body)).status_code == 200
        assert (await http.post("/v1/completions", content=body + b" ")).status_code == 413


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic key-1", "Bearer key-2", "key-1", "Bearer é"])
async def test_a_missing_or_wrong_key_is_a_401(in_process: Any, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header.encode()}
    async with in_process(api_key="key-1") as http:
        reply = await http.post("/v1/completions", content=b"not even JSON", headers=headers)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_right_key_opens_every_route_and_probes_need_none(in_process: Any, scheme: str) -> None:
    async with in_process(api_key="key-1") as http:
        assert (await http.get("/v1/models", headers={"authorization": f"{scheme} key-1"})).status_code == 200
        for path in ("/v1/models", "/v1/models/fake-model"):
            assert (await http.get(path)).status_code == 401
        for path in ("/health", "/version", "/metrics"):
            assert (await http.get(path)).status_code == 200


async def test_health_follows_the_engine(in_process: Any) -> None:
    engine = ScriptedEngine([])
    async with in_process(engine=engine) as http:
        assert (await http.get("/health")).status_code == 200
        engine.close()
        dead = await http.get("/health")
    assert dead.status_code == 503
    assert dead.headers["retry-after"].isdigit()


async def test_version_metrics_and_models(in_process: Any) -> None:
    async with in_process() as http:
        assert (await http.get("/version")).json() == {"version": "1.2.3"}
        page = await http.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert page.text == "# accept application/openmetrics-text\n"
        assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        card = (await http.get("/v1/models/alias/of-it")).json()
    assert card["root"] == "fake-model"
    assert card["max_model_len"] == 512
    assert card["created"] == 1_700_000_000


async def test_the_description_names_routes_and_bodies(in_process: Any) -> None:
    async with in_process() as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics"} <= paths.keys()
    schema = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "max_tokens"} <= schema["properties"].keys()


@pytest.mark.parametrize("changes", [{"model_names": ()}, {"model_names": ("",)}, {"api_key": ""}])
def test_a_bundle_that_cannot_serve_is_refused(make_services: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"name|empty"):
        make_services(engine=ScriptedEngine([]), **changes)


async def test_a_chat_fills_the_pool_where_that_is_smaller_than_the_context(in_process: Any, make_engine: Any) -> None:
    pool = CacheShape(num_blocks=4, block_tokens=16, bytes_per_block=Bytes(1))
    async with in_process(engine=make_engine(max_model_len=4096, cache=pool)) as http:
        reply = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert reply.json()["usage"]["total_tokens"] == 4 * 16 + 1

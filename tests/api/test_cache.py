"""``POST /reset_prefix_cache``: who may, which tiers, and that the next request is cold."""

from __future__ import annotations

from typing import Any

import pytest

from api.fake import ScriptedEngine

BODY = {"model": "fake-model", "prompt": "x" * 64, "max_tokens": 1}


async def cached(http: Any) -> int:
    reply = await http.post("/v1/completions", json=BODY)
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_reset_makes_the_next_request_cold(in_process: Any) -> None:
    async with in_process() as http:
        assert [await cached(http), await cached(http)] == [0, 48]
        reply = await http.post("/reset_prefix_cache")
        assert reply.status_code == 200
        assert reply.json() == {"tier": "all", "blocks_forgotten": 4}
        assert await cached(http) == 0
        reply = await http.post("/reset_prefix_cache", params={"tier": "device"})
        assert reply.json()["tier"] == "device"
        assert await cached(http) == 0


async def test_a_tier_that_is_not_there_is_named(in_process: Any) -> None:
    async with in_process() as http:
        reply = await http.post("/reset_prefix_cache", params={"tier": "disk"})
        assert reply.status_code == 400
        assert "There is no KV tier 'disk': here is device only." in reply.json()["error"]["message"]


@pytest.mark.parametrize(("key", "status"), [("admin", 200), ("of-a-tenant", 403), ("wrong", 401), (None, 401)])
async def test_only_the_operator_may(in_process: Any, key: str | None, status: int) -> None:
    engine = ScriptedEngine([])
    async with in_process(engine=engine, api_key="admin", tenants={"of-a-tenant": "search"}) as http:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        reply = await http.post("/reset_prefix_cache", headers=headers)
        assert reply.status_code == status
        assert engine.resets == ([None] if status == 200 else [])


async def test_a_dead_engine_says_so(in_process: Any) -> None:
    async with in_process() as http:
        services = http._transport.app.state.services
        services.engine.close()
        reply = await http.post("/reset_prefix_cache")
        assert reply.status_code == 503

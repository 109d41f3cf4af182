"""Whatever JSON arrives, the answer is 200 or a 4xx in OpenAI's shape; the engine is idle afterwards."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.fields import HARMLESS, NEUTRAL
from api.schemas_chat import ChatBody
from api.schemas_completions import CompletionBody

NAMES = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *NEUTRAL, *HARMLESS} - {"messages", "prompt"})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3)
)
PLAUSIBLE = st.sampled_from(
    [None, True, False, 0, 1, 2, 5, 0.5, "stop", ["a"], [3], {}, [], {"include_usage": True}, {"type": "text"}]
)
FIELDS = st.dictionaries(st.sampled_from(NAMES), PLAUSIBLE | VALUES, max_size=4)
PROMPTS = st.sampled_from(["abc", "", ["a", "b"], [1, 2], [[1], [2, 3]]]) | VALUES
CONTENT = st.text(max_size=9) | st.just([{"type": "text", "text": "t"}]) | VALUES
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.text(max_size=5), "content": CONTENT}), max_size=3) | VALUES
BODIES = st.one_of(
    st.tuples(st.just("/v1/completions"), st.builds(lambda p, f: {"prompt": p, **f}, PROMPTS, FIELDS)),
    st.tuples(st.just("/v1/chat/completions"), st.builds(lambda m, f: {"messages": m, **f}, MESSAGES, FIELDS)),
    st.tuples(st.sampled_from(["/v1/completions", "/v1/chat/completions"]), VALUES),
)
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


async def _post(in_process: Any, make_engine: Any, requests: list[tuple[str, bytes]]) -> None:
    engine = make_engine(max_model_len=64)
    async with in_process(engine=engine) as http:
        for path, raw in requests:
            reply = await http.post(path, content=raw)
            assert reply.status_code == 200 or 400 <= reply.status_code < 500, (raw, reply.text)
            assert "event: error" not in reply.text
            if reply.status_code != 200:
                error = reply.json()["error"]
                assert error.keys() == {"message", "type", "param", "code"}
                assert error["message"]
                assert error["type"] == "invalid_request_error"
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


@given(requests=st.lists(BODIES, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=SHARED)
def test_any_json_body(in_process: Any, make_engine: Any, requests: list[tuple[str, Any]]) -> None:
    encoded = [(path, json.dumps(body).encode()) for path, body in requests]
    asyncio.run(_post(in_process, make_engine, encoded))


@given(raw=st.lists(st.binary(max_size=60), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None, suppress_health_check=SHARED)
def test_any_bytes(in_process: Any, make_engine: Any, raw: list[bytes]) -> None:
    asyncio.run(_post(in_process, make_engine, [("/v1/completions", body) for body in raw]))

"""What a request body may say: used, harmless, neutral, refused."""

from __future__ import annotations

from typing import Any

import pytest

from api.fake import FakeChat, ScriptedEngine
from api.fields import HARMLESS, NEUTRAL
from api.schemas_chat import ChatBody
from api.schemas_completions import CompletionBody
from api.services import Limits
from energyopt.core.records import FinishReason
from engine.output import Output

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine([Output("", "ok", (1,), finish_reason=FinishReason.STOP)])


async def refused(in_process: Any, path: str, body: dict[str, object]) -> dict[str, Any]:
    async with in_process(limits=Limits(max_choices=6)) as http:
        reply = await http.post(path, json=body)
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error


@pytest.mark.parametrize(
    ("field", "close"), [("max_token", "max_tokens"), ("temprature", "temperature"), ("Stream", "stream")]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_misspelt_field_is_refused_with_the_closest_name(
    in_process: Any, path: str, field: str, close: str
) -> None:
    error = await refused(in_process, path, {"prompt" if path != CHAT else "messages": HELLO, field: 1})
    assert (error["param"], error["code"]) == (field, "unknown_parameter")
    assert f"did you mean {close!r}" in error["message"]


async def test_a_field_like_nothing_known_is_refused_plainly(in_process: Any) -> None:
    error = await refused(in_process, CHAT, {"messages": HELLO, "qqqqqq" * 50: None})
    assert "not a field of this route" in error["message"]
    assert len(error["param"]) == 100


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({}, "messages", "missing"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hello"}, "messages", "list"),
        ({"messages": [{}]}, "messages[0].role", "role"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content", "string"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]", "image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]", "text"),
        ({"temperature": "hot"}, "temperature", "'hot'"),
        ({"temperature": 101}, "temperature", "101"),
        ({"top_p": 0}, "top_p", "between"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": "16"}, "max_tokens", "'16'"),
        ({"max_tokens": 10**30}, "max_tokens", "between"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "-1"),
        ({"stream": 1}, "stream", "boolean"),
        ({"n": 0}, "n", "0"),
        ({"n": 7}, "n", "at most 6"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "empty"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice", "functions f"),
        ({"tool_choice": {"function": {"name": "g"}}, "tools": TOOLS}, "tool_choice", "functions f"),
        ({"tool_choice": "always", "tools": TOOLS}, "tool_choice", "'required'"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0]"),
        ({"tools": [{"function": {"name": "f", "parameters": 5}}]}, "tools", "JSON schema"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice", "two forms"),
        ({"logit_bias": {"50256": -100}}, "logit_bias", "50256"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "between 0 and 100"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "between 0 and 8"),
        ({"timeout": 0}, "timeout", "between 0.001"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
        ({"chat_template": "{{ x }}"}, "chat_template", "null"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages'"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs", "'self'"),
    ],
)
async def test_refused_chat_bodies(in_process: Any, body: dict[str, object], param: str, word: str) -> None:
    error = await refused(in_process, CHAT, body if "messages" in body or not body else {"messages": HELLO, **body})
    assert error["param"] == param
    assert word in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({}, "prompt", "missing"),
        ({"prompt": None}, "prompt", "array"),
        ({"prompt": []}, "prompt", "array"),
        ({"prompt": ["a", 1]}, "prompt", "array"),
        ({"prompt": [True]}, "prompt", "array"),
        ({"prompt": [[1], []]}, "prompt", "array"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [0, 999]}, "prompt", "999"),
        ({"prompt": [-1]}, "prompt", "-1"),
        ({"prompt": "x", "echo": True, "logprobs": 1, "max_tokens": -1}, "max_tokens", "between 0"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "between 1"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
        ({"prompt": "x", "best_of": 3}, "best_of", "equals n"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "integer"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "20"),
        ({"prompt": ["x", "y"], "n": 4}, "n", "2 prompts"),
        ({"prompt": "x", "min_tokens": -1}, "min_tokens", "between 0"),
    ],
)
async def test_refused_completion_bodies(in_process: Any, body: dict[str, object], param: str, word: str) -> None:
    error = await refused(in_process, "/v1/completions", body)
    assert error["param"] == param
    assert word in error["message"]


async def test_every_harmless_and_neutral_value_is_accepted(in_process: Any, engine: ScriptedEngine) -> None:
    fields: dict[str, object] = dict.fromkeys(HARMLESS, "anything")
    neutral = {name: values[0] for name, values in NEUTRAL.items() if values}
    async with in_process(engine=engine) as http:
        for extra in (fields, neutral, dict.fromkeys(NEUTRAL)):
            reply = await http.post(CHAT, json={"messages": HELLO, **extra})
            assert reply.status_code == 200, reply.text


async def test_null_means_the_default_for_every_optional_field(in_process: Any, engine: ScriptedEngine) -> None:
    chat = dict.fromkeys(ChatBody.model_fields) | {"messages": HELLO}
    plain = dict.fromkeys(CompletionBody.model_fields) | {"prompt": "x"}
    async with in_process(engine=engine) as http:
        assert (await http.post(CHAT, json=chat)).status_code == 200
        assert (await http.post("/v1/completions", json=plain)).status_code == 200
    assert engine.asked[0][1].temperature == 1.0


async def test_sampling_reaches_the_engine(in_process: Any, engine: ScriptedEngine) -> None:
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2}
    wanted |= {"frequency_penalty": 0.3, "repetition_penalty": 1.1, "seed": 9, "max_tokens": 5}
    wanted |= {"min_tokens": 2, "priority": -3, "skip_special_tokens": False, "timeout": 12.5}
    body = {
        "messages": HELLO,
        **wanted,
        "logit_bias": {"5": 1, "6": -2.5},
        "stop": "x",
        "stop_token_ids": [3],
        "ignore_eos": True,
        "n": 2,
    }
    async with in_process(engine=engine) as http:
        await http.post(CHAT, json=body)
        await http.post(CHAT, json={"messages": HELLO, "top_k": -1, "max_tokens": 9, "max_completion_tokens": 4})
    (_, first, _), (_, second, _), (_, third, _) = engine.asked
    assert {name: getattr(first, name) for name in wanted} == wanted
    assert (first.stop, first.stop_token_ids, first.ignore_eos) == (("x",), (3,), True)
    assert first.logit_bias == ((5, 1.0), (6, -2.5))
    assert second.seed == 10
    assert (third.top_k, third.max_tokens) == (0, 4)


@pytest.mark.parametrize(
    ("body", "headers", "session"),
    [
        ({}, {}, None),
        ({"session_id": "s1"}, {"x-session-id": "s2"}, "s1"),
        ({}, {"X-Session-ID": "s2", "x-correlation-id": "s3"}, "s2"),
        ({}, {"x-correlation-id": "s3"}, "s3"),
        ({}, {"x-session-affinity": "s4"}, "s4"),
    ],
)
async def test_the_session(
    in_process: Any, engine: ScriptedEngine, body: dict[str, str], headers: dict[str, str], session: str | None
) -> None:
    async with in_process(engine=engine) as http:
        await http.post(CHAT, json={"messages": HELLO, **body}, headers=headers)
    assert engine.asked[0][2] == session


async def test_messages_reach_the_template_untouched(in_process: Any, engine: ScriptedEngine) -> None:
    odd = {"role": "critic", "content": "x", "reasoning_content": "because", "reasoning": "r", "weight": {"a": [1]}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"arguments": "{ }"}}]}
    parts = {"role": "user", "name": "u", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat = FakeChat()
    body = {"messages": [odd, call, parts, *HELLO, *HELLO], "tools": tools, "reasoning_effort": "low"}
    async with in_process(engine=engine, chat=chat) as http:
        await http.post(CHAT, json={**body, "chat_template_kwargs": {"enable_thinking": False}})
        await http.post(CHAT, json={**body, "tool_choice": "none"})
    messages, seen_tools, extra = chat.seen[0]
    assert messages == [odd, call, {"role": "user", "name": "u", "content": "a\nb"}, *HELLO, *HELLO]
    assert seen_tools == tools
    assert extra == {"enable_thinking": False, "reasoning_effort": "low"}
    assert chat.seen[1][1] is None


async def test_a_long_prompt_is_tokenized_on_a_thread_with_the_same_result(in_process: Any) -> None:
    engine = ScriptedEngine([Output("", "x", (120,), finish_reason=FinishReason.LENGTH)], max_model_len=65_536)
    async with in_process(engine=engine) as http:
        await http.post("/v1/completions", json={"prompt": "é" * 20_000})
    assert engine.asked[0][0] == list(("é" * 20_000).encode())

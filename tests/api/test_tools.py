"""Tool calls and reasoning over HTTP: whole and streamed alike, through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.parsers.formats import Formats
from engine.structured.ports import GuideSpec

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Weather?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Köln", "Rom"]}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
BOTH = f'<think>\nHm.</think>\n\nLet me see.\n{CALL}\n<tool_call>{{"name": "now", "arguments": {{"a": </tool_call>'
QWEN = Formats("hermes", "think")


def joined(chunks: Any) -> dict[str, Any]:
    """What a client makes of a stream: deltas added up."""
    content, reasoning, reason, calls = "", "", None, dict[int, dict[str, str]]()
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                known = calls.setdefault(call.index, {"id": call.id or "", "name": "", "arguments": ""})
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
    return {"content": content, "reasoning": reasoning, "reason": reason, "calls": list(calls.values())}


def serve(serve_it: Any, make_engine: Any, says: str, formats: Formats = QWEN) -> Any:
    return serve_it(engine=make_engine(say=[*says.encode(), 256]), formats=formats)


def test_reasoning_answer_and_calls_are_told_apart(serve_it: Any, make_engine: Any) -> None:
    client = serve(serve_it, make_engine, BOTH).client()
    ask: dict[str, Any] = {"model": "fake-model", "messages": HELLO, "tools": TOOLS, "max_tokens": 400}
    choice = client.chat.completions.create(**ask).choices[0]
    streamed = joined(client.chat.completions.create(**ask, stream=True))
    message = choice.message
    assert (message.content, choice.finish_reason) == ("Let me see.\n", "tool_calls")
    assert message.reasoning_content == message.reasoning == "Hm."
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    assert calls == [("weather", {"city": "Köln"}), ("now", {"a": None})], "a call that breaks is JSON still"
    assert all(call.id.startswith("call_") and call.type == "function" for call in message.tool_calls)
    assert [(call["name"], json.loads(call["arguments"])) for call in streamed["calls"]] == calls
    assert len({call["id"] for call in streamed["calls"]}) == 2
    assert {key: streamed[key] for key in ("content", "reasoning", "reason")} == {
        "content": "Let me see.\n",
        "reasoning": "Hm.",
        "reason": "tool_calls",
    }


def test_without_tools_a_call_is_text_and_reasoning_can_be_left_out(serve_it: Any, make_engine: Any) -> None:
    http = serve(serve_it, make_engine, f"<think>Hm.</think>{CALL}").http
    body = {"messages": HELLO, "max_tokens": 400, "include_reasoning": False}
    message = http.post(CHAT, json=body).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": CALL, "refusal": None}
    unasked = http.post(CHAT, json={**body, "tools": TOOLS, "tool_choice": "none"}).json()["choices"][0]
    assert (unasked["message"]["content"], unasked["finish_reason"]) == (CALL, "stop")


def test_a_client_that_wants_one_call_at_a_time_gets_no_more(serve_it: Any, make_engine: Any) -> None:
    http = serve(serve_it, make_engine, f"Now. {CALL}{CALL}").http
    body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 400}
    for parallel, count in ((False, 1), (True, 2), (None, 2)):
        ask = {**body, "parallel_tool_calls": parallel}
        choice = http.post(CHAT, json=ask).json()["choices"][0]
        assert len(choice["message"]["tool_calls"]) == count
        assert choice["finish_reason"] == "tool_calls"
        assert {call["index"] for call in _streamed_calls(http, ask)} == set(range(count))


def _streamed_calls(http: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = http.post(CHAT, json={**body, "stream": True}).text
    chunks = [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n")[:-2]]
    return [call for chunk in chunks for c in chunk["choices"] for call in c["delta"].get("tool_calls", ())]


def test_an_answer_that_is_cut_inside_a_call_is_json(serve_it: Any, make_engine: Any) -> None:
    http = serve(serve_it, make_engine, CALL).http
    body = {"messages": HELLO, "tools": TOOLS, "logprobs": True, "top_logprobs": 1}
    for most in range(1, len(CALL.encode()), 7):
        choice = http.post(CHAT, json={**body, "max_tokens": most}).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert len(choice["logprobs"]["content"]) == most
        for call in choice["message"].get("tool_calls", ()):
            json.loads(call["function"]["arguments"])
        text = http.post(CHAT, json={**body, "max_tokens": most, "stream": True}).text
        chunks = [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n")[:-2]]
        entries = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
        assert sum(len(entry["content"]) for entry in entries) == most


def test_kimi_gets_its_own_ids_back(serve_it: Any, make_engine: Any) -> None:
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )
    http = serve(serve_it, make_engine, text, Formats("kimi_k2")).http
    body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 400}
    (call,) = http.post(CHAT, json=body).json()["choices"][0]["message"]["tool_calls"]
    assert call["id"] == "functions.now:7"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("formats", [Formats(), QWEN, Formats("kimi_k2")])
def test_a_forced_call_is_made_whatever_the_model_prefers(
    serve_it: Any, make_engine: Any, choice: Any, formats: Formats
) -> None:
    client = serve_it(engine=make_engine(random_vocab=260), formats=formats).client()
    earlier = [{"id": "x", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
    messages = [*HELLO, {"role": "assistant", "tool_calls": earlier}, *HELLO]
    ask: dict[str, Any] = {"model": "fake-model", "messages": messages, "tools": TOOLS, "tool_choice": choice}
    ask |= {"max_tokens": 200, "seed": 3, "parallel_tool_calls": False}
    answer = client.chat.completions.create(**ask).choices[0]
    streamed = joined(client.chat.completions.create(**ask, stream=True))
    assert answer.finish_reason == streamed["reason"] == "tool_calls"
    (call,) = answer.message.tool_calls
    assert (streamed["calls"][0]["name"], streamed["calls"][0]["arguments"]) == (
        call.function.name,
        call.function.arguments,
    )
    arguments = json.loads(call.function.arguments)
    assert call.function.name in ("weather", "now")
    if call.function.name == "weather":
        assert arguments["city"] in ("Köln", "Rom")
    if formats.tools == "kimi_k2":
        assert call.id == f"functions.{call.function.name}:1"


async def test_a_form_begins_where_the_reasoning_ends(in_process: Any, scripted: Any) -> None:
    class Opening:
        def render(self, messages: Any, **options: Any) -> str:
            return "assistant\n<think>\n"

    body = {"messages": HELLO, "guided_choice": ["yes"]}
    async with in_process(engine=scripted, chat=Opening(), formats=QWEN) as http:
        reply = (await http.post(CHAT, json=body)).json()
        await http.post(CHAT, json={**body, "messages": HELLO})
    assert scripted.asked[0][1].guide == GuideSpec("choice", '["yes"]', after="</think>")
    assert not scripted.asked[0][1].skip_special_tokens
    assert reply["choices"][0]["message"]["reasoning"] == "ok"

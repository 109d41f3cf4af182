"""What forms a body may ask for, and that an answer over HTTP has its form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.fake import ScriptedEngine
from energyopt.core.records import FinishReason
from engine.fake import FakeTokenizer
from engine.output import Output
from engine.structured.ports import GuideSpec

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("body", "spec"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_choice": [], "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, GuideSpec("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
                }
            },
            GuideSpec("json_schema", json.dumps(SCHEMA)),
        ),
        ({"guided_json": SCHEMA}, GuideSpec("json_schema", json.dumps(SCHEMA))),
        ({"guided_json": "{}"}, GuideSpec("json_schema", "{}")),
        ({"guided_regex": "a+"}, GuideSpec("regex", "a+")),
        ({"guided_choice": ["a", "b"]}, GuideSpec("choice", '["a", "b"]')),
        ({"guided_grammar": "g"}, GuideSpec("grammar", "g")),
        ({"structured_outputs": {"regex": "a", "json": None, "json_object": False}}, GuideSpec("regex", "a")),
        ({"structured_outputs": {"json": SCHEMA}}, GuideSpec("json_schema", json.dumps(SCHEMA))),
        ({"structured_outputs": {"json_object": True}}, GuideSpec("json_object")),
    ],
)
async def test_every_way_to_ask(in_process: Any, scripted: Any, body: dict[str, object], spec: object) -> None:
    async with in_process(engine=scripted) as http:
        reply = await http.post(CHAT, json={"messages": HELLO, **body})
    assert reply.status_code == 200, reply.text
    assert scripted.asked[0][1].guide == spec


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format", "schema"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs", "xml"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "string"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "several"),
        ({"guided_regex": "(a"}, "guided_regex", "guided_regex cannot be"),
        ({"guided_choice": [""]}, "guided_choice", "at least one"),
        ({"guided_grammar": "*"}, "guided_grammar", "Expected name"),
        ({"guided_regex": "a{4000000000}"}, "guided_regex", "repetitions"),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, "structured_outputs", "whitespace"),
        ({"guided_json": {"type": "foo"}}, "guided_json", "foo"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals(in_process: Any, body: dict[str, object], param: str, word: str, stream: bool) -> None:
    async with in_process() as http:
        reply = await http.post(CHAT, json={"messages": HELLO, "stream": stream, **body})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert word in reply.json()["error"]["message"]


async def test_answers_have_their_form(in_process: Any, make_engine: Any) -> None:
    engine = make_engine(random_vocab=FakeTokenizer().vocab_size)
    wish = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    async with in_process(engine=engine) as http:
        body = {"messages": HELLO, "response_format": wish, "n": 3, "seed": 4}
        whole = (await http.post(CHAT, json=body)).json()
        plain = (await http.post("/v1/completions", json={"prompt": "x", "guided_choice": ["yes", "no"]})).json()
    for choice in whole["choices"]:
        assert choice["finish_reason"] == "stop"
        assert isinstance(json.loads(choice["message"]["content"])["a"], bool)
    assert plain["choices"][0]["text"] in ("yes", "no")


@pytest.mark.parametrize("stream", [True, False])
async def test_why_an_answer_could_not_keep_its_form_is_told(in_process: Any, stream: bool) -> None:
    failed = Output("", "", (1,), finish_reason=FinishReason.ERROR, failure="too many lexer states")
    async with in_process(engine=ScriptedEngine([failed])) as http:
        reply = await http.post(CHAT, json={"messages": HELLO, "stream": stream, "guided_regex": "a+"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"] == "The answer could not be kept in the form of guided_regex: too many lexer states."
    assert error["param"] == "guided_regex"

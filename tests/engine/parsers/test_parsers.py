"""Each format read whole and in pieces: the same calls, reasoning and text, and always JSON on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from engine.parsers.events import Arguments, CallBegun, Event, OutputParser, Said, Thought, merged
from engine.parsers.forced import NamedCall, RequiredCalls
from engine.parsers.formats import TOOLS, Formats, formats_of
from engine.parsers.json_gate import JsonGate
from engine.parsers.think import Plain, ThinkThenAnswer

D = {"section": "<｜tool▁calls▁begin｜>", "call": "<｜tool▁call▁begin｜>", "sep": "<｜tool▁sep｜>"}
D |= {"end": "<｜tool▁call▁end｜>", "stop": "<｜tool▁calls▁end｜>"}
WEATHER = '{"city": "Köln", "days": [1, 2]}'

PARSERS: dict[str, Callable[[], OutputParser]] = {
    **TOOLS,
    "think": lambda: ThinkThenAnswer(Plain(), opened=False),
    "think_opened": lambda: ThinkThenAnswer(TOOLS["hermes"](), opened=True),
    "named": lambda: NamedCall("f"),
    "required": RequiredCalls,
}


def run(parser: OutputParser, pieces: Sequence[str]) -> list[Event]:
    return merged([event for piece in pieces for event in parser.feed(piece)] + parser.close())


def calls(events: Sequence[Event]) -> list[tuple[str, Any, str | None]]:
    """Name, arguments and id of each call; the arguments must be a JSON object."""
    begun = [event for event in events if isinstance(event, CallBegun)]
    assert [event.index for event in begun] == list(range(len(begun)))
    texts = ["".join(e.text for e in events if isinstance(e, Arguments) and e.index == n) for n in range(len(begun))]
    found = [json.loads(text) for text in texts]
    assert all(isinstance(arguments, dict) for arguments in found)
    return [(event.name, arguments, event.id) for event, arguments in zip(begun, found, strict=True)]


def said(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Said))


def thought(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Thought))


Call = tuple[str, Any, str | None]
ONE: list[Call] = [("get_weather", json.loads(WEATHER), None)]
TWO: list[Call] = [*ONE, ("now", {}, None)]
WHOLE: list[tuple[str, str, list[Call], str, str]] = [
    (
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {WEATHER}}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>\n',
        TWO,
        "Let me see.\n",
        "",
    ),
    ("hermes", "No call < here </tool_call>", [], "No call < here </tool_call>", ""),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{}", "x": [1]}</tool_call> done', [TWO[1]], "done", ""),
    ("hermes", "<tool_call>nothing</tool_call>!", [], "<tool_call>nothing</tool_call>!", ""),
    ("llama3_json", f'{{"name": "get_weather", "parameters": {WEATHER}}}', ONE, "", ""),
    (
        "llama3_json",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {WEATHER}}}; {{"name": "now", "parameters": {{}}}}',
        TWO,
        "",
        "",
    ),
    ("llama3_json", 'Just {"name": "f"} text', [], 'Just {"name": "f"} text', ""),
    ("llama3_json", ' {"answer": 42}', [], ' {"answer": 42}', ""),
    (
        "deepseek",
        f"Sure.{D['section']}{D['call']}function{D['sep']}get_weather\n```json\n{WEATHER}\n```{D['end']}\n"
        f"{D['call']}function{D['sep']}now\n```json\n{{}}\n```{D['end']}{D['stop']}",
        TWO,
        "Sure.",
        "",
    ),
    (
        "deepseek",
        f"{D['section']}{D['call']}get_weather{D['sep']}{WEATHER}{D['end']}{D['call']}now{D['sep']}{{}}{D['end']}{D['stop']}",
        TWO,
        "",
        "",
    ),
    (
        "kimi_k2",
        f"Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>{WEATHER}"
        "<|tool_call_end|><|tool_call_begin|>functions.now:4<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [(*ONE[0][:2], "functions.get_weather:3"), ("now", {}, "functions.now:4")],
        "Ok",
        "",
    ),
    (
        "openai",
        "<|channel|>analysis<|message|>Think hard.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.get_weather "
        f"<|constrain|>json<|message|>{WEATHER}<|call|>",
        ONE,
        "",
        "Think hard.",
    ),
    (
        "openai",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Hello <b>you</b><|return|>",
        [],
        "Hello <b>you</b>",
        "Hm.",
    ),
    ("openai", '{"forced": true}', [], '{"forced": true}', ""),
    ("gemma", 'See:\n```tool_code\nprint(get_weather(city="Köln", days=[1, 2]))\nnow()\n```', TWO, "See:\n", ""),
    *(
        ("gemma", f"```tool_code\nf(a={bad})\n```", [], f"```tool_code\nf(a={bad})\n```", "")
        for bad in ("{(1, 2): 3}", "1e999", "[-1e999]", "{b'x': 1}", "x", "1" * 5000)
    ),
    ("gemma", "```tool_code\nx = 1\n``` and ```py\n1\n```", [], "```tool_code\nx = 1\n``` and ```py\n1\n```", ""),
    ("think", "<think>\nHm, 1 < 2.\n</think>\n\nYes.", [], "Yes.", "Hm, 1 < 2.\n"),
    ("think", "\n\nNo <think> at first.", [], "\n\nNo <think> at first.", ""),
    ("think_opened", 'Hm.</think><tool_call>{"name": "now", "arguments": {}}</tool_call>', [TWO[1]], "", "Hm."),
    ("think_opened", "never ends", [], "", "never ends"),
    ("named", f" {WEATHER}", [("f", json.loads(WEATHER), None)], "", ""),
    (
        "required",
        f'[{{"name": "get_weather", "arguments": {WEATHER}}}, {{"name": "now", "arguments": {{}}}}]',
        TWO,
        "",
        "",
    ),
]


@pytest.mark.parametrize(("name", "text", "found", "answer", "reasoning"), WHOLE)
def test_whole_and_sign_by_sign(name: str, text: str, found: list[Call], answer: str, reasoning: str) -> None:
    whole = run(PARSERS[name](), [text])
    assert (calls(whole), said(whole), thought(whole)) == (found, answer, reasoning)
    assert run(PARSERS[name](), list(text)) == whole


@pytest.mark.parametrize(("name", "text", "found", "answer", "reasoning"), WHOLE)
def test_an_answer_that_breaks_off_anywhere_is_json_still(
    name: str, text: str, found: list[Call], answer: str, reasoning: str
) -> None:
    for end in range(len(text)):
        events = run(PARSERS[name](), [text[:end]])
        made = calls(events)
        assert [call[0] for call in made] == [call[0] for call in found][: len(made)]


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", *D.values(), "function", "\n```json\n"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>"),
    *(
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=functions.f ",
    ),
    *(
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "assistant",
        "<|call|>",
        "```tool_code\n",
        "```",
        "f(a=1)",
        "\n",
        " ",
        "<",
    ),
    *(
        '{"name": "f", ',
        '"arguments": ',
        '"parameters": {',
        "}",
        "]",
        "[",
        ",",
        '{"a": 1',
        '"x\\',
        "tru",
        "-1.",
        ";",
        "é",
    ),
]


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(PARSERS)), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_any_text_cut_anyhow_reads_the_same_and_is_json(name: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    whole = run(PARSERS[name](), [text])
    calls(whole)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(PARSERS[name](), pieces) == whole
    assert run(PARSERS[name](), list(text)) == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(JSON, st.sampled_from((None, 1)), st.booleans(), st.data())
def test_the_gate_lets_json_through_and_completes_any_beginning(
    value: object, indent: int | None, ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    gate = JsonGate()
    passed, count = gate.feed(text + "\n")
    assert json.loads(passed) == value
    assert (passed, count, gate.closing() if gate.done else "") == (text, len(text), "")
    cut = JsonGate()
    start, _ = cut.feed(text[: data.draw(st.integers(0, len(text)))])
    json.loads(start + cut.closing())


@settings(deadline=None)
@given(st.text('{}[]",:\\ue+-.01ntf \n', max_size=30), st.booleans())
def test_nothing_that_cannot_be_json_passes_the_gate(text: str, only_object: bool) -> None:
    gate = JsonGate(only_object=only_object)
    passed, count = gate.feed(text)
    found = json.loads(passed + gate.closing())
    assert isinstance(found, dict) or not only_object
    assert count == len(text) or gate.done or gate.broken
    byte_by_byte = JsonGate(only_object=only_object)
    pieces = ""
    for sign in text:
        if byte_by_byte.done or byte_by_byte.broken:
            break
        pieces += byte_by_byte.feed(sign)[0]
    assert pieces == passed


@pytest.mark.parametrize(
    ("template", "formats"),
    [
        (None, Formats()),
        ("{{ messages }}", Formats()),
        ("<tool_call> ... </think>", Formats("hermes", "think")),
        ("<tool_call>", Formats("hermes")),
        ("<|python_tag|>", Formats("llama3_json")),
        (D["section"] + "</think>", Formats("deepseek", "think")),
        ("<|tool_calls_section_begin|>", Formats("kimi_k2")),
        ("<|start|>system<|channel|>", Formats("openai", "openai")),
        ("<start_of_turn>user", Formats("gemma")),
    ],
)
def test_a_template_tells_the_formats(template: str | None, formats: Formats) -> None:
    assert formats_of(template) == formats


def test_formats_by_name() -> None:
    assert formats_of("<tool_call>", tools="deepseek_v31", reasoning="qwen3") == Formats("deepseek", "think")
    assert formats_of("<tool_call></think>", tools="none", reasoning="none") == Formats()
    for option in ("tools", "reasoning"):
        with pytest.raises(ConfigError, match="allowed are auto, none"):
            formats_of("", **{option: "nonsense"})


def test_an_answer_without_anything_to_find_needs_no_parser() -> None:
    assert Formats().parser() is None
    assert Formats("hermes").parser() is None
    assert Formats("hermes").parser(tools=True) is not None
    assert Formats(None, "think").parser() is not None
    assert Formats(None, "think").opened("...<think>\n")
    assert not Formats(None, "think").opened("...<think>\n\n</think>\n\n")
    assert not Formats("hermes").opened("<think>")

"""Azure CSV, OpenAI messages, ShareGPT, and telling formats apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from tuner.workload.azure import read_azure, write_azure
from tuner.workload.conversations import (
    calls_of,
    read_messages,
    read_sharegpt,
    write_messages,
    write_sharegpt,
)
from tuner.workload.formats import detect_form, read_trace
from tuner.workload.trace import Agent, Call, Trace, TraceSession

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_azure_rows_count_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
    first, second = read_azure(path).sessions
    assert (first.arrival, second.arrival) == (0.0, 4.314579)
    assert next(second.calls).output_tokens == 109


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("yesterday,1,2", ["line 3", "TIMESTAMP is 'yesterday'"]),
        ("2023-11-16 18:15:46.x,1,2", ["line 3", "TIMESTAMP"]),
        ("2023-11-16 18:15:46,-1,2", ["line 3", "ContextTokens is '-1'", "integer from 0"]),
        ("2023-11-16 18:15:46,1,²", ["line 3", "GeneratedTokens is '²'"]),
        ("2023-11-16 18:15:46,1", ["line 3", "2 cells"]),
    ],
)
def test_a_bad_azure_row_is_named_or_counted(tmp_path: Path, line: str, words: list[str]) -> None:
    path = tmp_path / "a.csv"
    good = "2023-11-16 18:15:46.6805900,374,44\n"
    path.write_text(HEADER + good + line + "\n" + good, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_azure(path)
    assert all(word in str(caught.value) for word in words)
    trace = read_azure(path, skip_bad=True)
    assert (len(trace.sessions), len(trace.skipped)) == (2, 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 9999), st.integers(0, 999)), min_size=1, max_size=9))
def test_azure_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]) -> None:
    start = min(tick for tick, _, _ in rows)
    sessions = tuple(
        TraceSession(f"row-{n}", (Agent("root", (Call(i, o, start=Seconds(0.0)),)),), Seconds((tick - start) / 1e7))
        for n, (tick, i, o) in enumerate(sorted(rows, key=lambda row: row[0]))
    )
    path = tmp_path_factory.mktemp("azure") / "t.csv"
    write_azure(Trace("t", sessions), path)
    assert read_azure(path).sessions == sessions


def chat(*turns: str) -> list[dict[str, object]]:
    roles = {"u": "user", "a": "assistant", "s": "system"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


def test_each_answer_is_a_call() -> None:
    first, second, last = calls_of(chat("s:be brief", "u:hi", "a:hello", "u:and", "a:so", "u:bye"))
    assert [message["content"] for message in first.messages] == ["be brief", "hi"]
    assert (first.answer, first.continues) == ("hello", False)
    assert (second.answer, second.continues) == ("so", True)
    assert (last.answer, last.continues) == (None, True)


def test_a_tool_call_is_history() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    (only,) = calls_of([*chat("u:weather?"), call, {"role": "tool", "content": "rain"}, *chat("a:it rains")])
    assert only.messages[1] == call
    assert only.answer == "it rains"


texts = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def conversations(draw: st.DrawFn) -> Trace:
    sessions = []
    for number in range(draw(st.integers(1, 4))):
        messages = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
        for _ in range(draw(st.integers(1, 4))):
            messages += [{"role": "user", "content": draw(texts)}, {"role": "assistant", "content": draw(texts)}]
        messages = messages[: len(messages) - draw(st.integers(0, 1))]
        sessions.append(TraceSession(f"s{number}", (Agent("root", tuple(calls_of(messages))),)))
    return Trace("t", tuple(sessions))


@settings(max_examples=40, deadline=None)
@given(conversations())
def test_conversations_round_trip(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    folder = tmp_path_factory.mktemp("talk")
    write_messages(trace, folder / "t.jsonl")
    assert read_messages(folder / "t.jsonl") == trace
    write_sharegpt(trace, folder / "t.json")
    assert read_sharegpt(folder / "t.json") == trace


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"messages": "hi"}, ["line 2", "'messages' is 'hi'", "list of JSON objects"]),
        ({"messages": [{"content": "x"}]}, ["messages[0].role"]),
        ({"messages": []}, ["asks nothing"]),
        ({"conversations": []}, ["'messages' is missing"]),
    ],
)
def test_bad_messages(tmp_path: Path, bad: object, words: list[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ({"messages": chat("u:x")}, bad)))
    with pytest.raises(ConfigError) as caught:
        read_messages(path)
    assert all(word in str(caught.value) for word in words)
    assert len(read_messages(path, skip_bad=True).skipped) == 1


def test_bad_sharegpt(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"conversations": [{"from": "alien", "value": "x"}]}]))
    with pytest.raises(ConfigError, match=r"entry 0: conversations\[0\] needs 'from'"):
        read_sharegpt(path)
    with pytest.raises(ConfigError, match="no usable session"):
        read_trace(path, skip_bad=True)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (HEADER, "azure"),
        ('{"timestamp": 0, "input_length": 3}\n', "mooncake"),
        ('{"messages": []}\n', "messages"),
        ('[{"conversations": []}]', "sharegpt"),
        ('{"conversations": []}\n', "sharegpt"),
        ('{\n "id": "x",\n "requests": []}', "weka"),
    ],
)
def test_formats_are_told_apart(tmp_path: Path, text: str, form: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    assert detect_form(path) == form


def test_the_unknown_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\x00\xff\n")
    with pytest.raises(ConfigError, match="none of mooncake, weka"):
        read_trace(path)
    with pytest.raises(ConfigError, match="format 'x' is not known"):
        read_trace(path, form="x")


def test_the_public_azure_trace(traces: Path) -> None:
    trace = read_trace(traces / "azure" / "AzureLLMInferenceTrace_conv.csv")
    inputs = sorted(call.input_tokens or 0 for call in trace.calls)
    assert (len(inputs), inputs[len(inputs) // 2]) == (19_366, 1020)

"""Mooncake JSONL: golden numbers of the public trace, deltas of a session, bad rows, and the round trip."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from tuner.workload.mooncake import read_mooncake, write_mooncake
from tuner.workload.trace import DERIVED_IDS, Trace

Rows = Callable[..., Path]


def row(**fields: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 10, "output_length": 3, "hash_ids": [0]} | fields


def test_reads_a_plain_row(jsonl: Rows) -> None:
    trace = read_mooncake(jsonl(row(timestamp=1500, input_length=1025, hash_ids=[0, 1, 2])))
    (session,) = trace.sessions
    (call,) = session.calls
    assert (session.arrival, call.start, call.input_tokens, call.output_tokens) == (1.5, 0.0, 1025, 3)
    assert call.blocks == (0, 1, 2)
    assert trace.block_tokens == 512


def test_rows_of_one_session_are_deltas(jsonl: Rows) -> None:
    first = row(session_id="a", input_length=6, hash_ids=[7, 8])
    second = row(session_id="a", input_length=5, hash_ids=[9, 10], timestamp=2000)
    trace = read_mooncake(jsonl(first, second), block_tokens=4)
    one, two = trace.sessions[0].calls
    assert one.blocks == (7, 8)
    assert two.input_tokens == 6 + 3 + 5
    assert two.continues
    assert two.blocks[0] == 7, "the full block of the first row is found again"
    assert len(two.blocks) == 4, "14 tokens in blocks of 4"
    assert all(name >= DERIVED_IDS for name in two.blocks[1:]), "the second block now ends in the answer"
    assert two.start == 2.0


def test_equal_sessions_share_only_what_they_share(jsonl: Rows) -> None:
    rows = [row(session_id=name, input_length=8, hash_ids=[1, 2], timestamp=t) for t in (0, 5) for name in "ab"]
    first, second = read_mooncake(jsonl(*rows), block_tokens=4).sessions
    a, b = list(first.calls)[1], list(second.calls)[1]
    assert a.blocks[:2] == b.blocks[:2] == (1, 2)
    assert not set(a.blocks[2:]) & set(b.blocks[2:]), "live answers differ between sessions"


def test_messages_are_complete_prompts(jsonl: Rows) -> None:
    rows = [{"session_id": "a", "messages": [{"role": "user", "content": text}], "delay": 20} for text in "xy"]
    _, second = read_mooncake(jsonl(*rows)).sessions[0].calls
    assert not second.continues
    assert (second.input_tokens, second.think_time) == (None, 0.02)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(output_length=-1), ["'output_length' is -1", "integer from 0"]),
        (row(input_length=True), ["'input_length' is True"]),
        (row(input_length=1.5), ["'input_length' is 1.5"]),
        (row(input_length=1025), ["'hash_ids'", "3 ids for 1025 tokens in blocks of 512"]),
        (row(hash_ids=[-1]), ["'hash_ids'", "list of integers"]),
        (row(timestamp="now"), ["'timestamp' is 'now'", "a number"]),
        (row(timestamp=-5), ["'timestamp'"]),
        ({"timestamp": 0}, ["exactly one of", "input_length"]),
        (row(messages=[]), ["exactly one of"]),
        ("[1, 2]", ["expected a JSON object"]),
        ("{nonsense", ["not JSON"]),
        ('{"input_length": ' + "9" * 5000 + "}", ["not JSON"]),
        ("[" * 100_000, ["nested too deeply"]),
    ],
)
def test_a_bad_row_names_line_field_and_expectation(jsonl: Rows, bad: object, words: list[str]) -> None:
    path = jsonl(row(), bad, row())
    with pytest.raises(ConfigError) as caught:
        read_mooncake(path)
    for word in ["rows.jsonl line 2", *words]:
        assert word in str(caught.value)
    trace = read_mooncake(path, skip_bad=True)
    assert len(trace.sessions) == 2
    assert len(trace.skipped) == 1


def test_time_cannot_run_backward_within_a_session(jsonl: Rows) -> None:
    with pytest.raises(
        ConfigError, match=r"line 2.*'timestamp' is 5; expected at least that of the session's previous"
    ):
        read_mooncake(jsonl(row(session_id="a", timestamp=10), row(session_id="a", timestamp=5)))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file"):
        read_mooncake(tmp_path)


BLOCK = 4


@st.composite
def file_rows(draw: st.DrawFn) -> list[dict[str, object]]:
    rows, clock = [], 0
    for _ in range(draw(st.integers(1, 8))):
        clock += draw(st.integers(0, 5000))
        tokens = draw(st.integers(1, 12))
        made: dict[str, object] = {"timestamp": clock, "input_length": tokens, "output_length": draw(st.integers(0, 9))}
        if draw(st.booleans()):
            count = -(-tokens // BLOCK)
            made["hash_ids"] = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
        made["session_id"] = draw(st.sampled_from(["a", "b", "c"]))
        rows.append(made)
    return rows


@settings(max_examples=50, deadline=None)
@given(file_rows())
def test_what_is_written_is_what_was_read(tmp_path_factory: pytest.TempPathFactory, rows: list[object]) -> None:
    folder = tmp_path_factory.mktemp("trip")
    first, second = folder / "t.jsonl", folder / "again" / "t.jsonl"
    second.parent.mkdir()
    first.write_text("".join(json.dumps(one) + "\n" for one in rows))
    trace = read_mooncake(first, block_tokens=BLOCK)
    write_mooncake(trace, second)
    assert read_mooncake(second, block_tokens=BLOCK) == trace


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.binary(max_size=40)), max_size=5))
def test_no_bytes_do_harm(tmp_path_factory: pytest.TempPathFactory, lines: list[str | bytes]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.jsonl"
    path.write_bytes(
        b"\n".join(one if isinstance(one, bytes) else one.encode("utf-8", "surrogatepass") for one in lines)
    )
    assert read_mooncake(path, skip_bad=True).sessions == ()


def test_the_public_trace(conversation: Trace) -> None:
    trace = conversation
    assert len(trace.sessions) == 12_031
    lengths = sorted(call.input_tokens or 0 for call in trace.calls)
    assert lengths[len(lengths) // 2] == 6909
    assert len({name for call in trace.calls for name in call.blocks}) == 182_790

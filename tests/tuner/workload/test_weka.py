"""Agentic session files: structure, global ids, joins, bad requests, and the round trip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from tuner.workload.trace import Agent, Call, Trace, TraceSession
from tuner.workload.weka import read_weka, write_weka


def request(t: float, ids: list[int], **fields: object) -> dict[str, object]:
    return {"t": t, "type": "n", "model": "m", "in": 64 * len(ids), "out": 5, "hash_ids": ids} | fields


def session(*requests: object, **fields: object) -> dict[str, object]:
    return {"id": "s", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": list(requests)} | fields


def put(folder: Path, *documents: object) -> Path:
    for number, document in enumerate(documents):
        (folder / f"{number}.json").write_text(json.dumps(document))
    return folder


def subagent(t: float, *requests: object, duration_ms: float = 3000.0) -> dict[str, object]:
    return {"t": t, "type": "subagent", "agent_id": "a1", "duration_ms": duration_ms, "requests": list(requests)}


def test_local_ids_become_global(tmp_path: Path) -> None:
    trace = read_weka(put(tmp_path, session(request(0, [1, 2])), session(request(0, [1, 2]))))
    first, second = (set(call.blocks) for call in trace.calls)
    assert not first & second


def test_a_subagent_has_its_place_and_its_times(tmp_path: Path) -> None:
    tree = session(
        request(0, [1]),
        subagent(10, request(0.5, [7]), request(2, [7, 8])),
        request(11, [1, 2]),
        request(13, [1, 2, 3]),
    )
    (found,) = read_weka(put(tmp_path, tree)).sessions
    root, child = found.agents
    assert (child.parent, child.after, child.start, child.duration) == (0, 1, 10.0, 3.0)
    assert [call.start for call in child.calls] == [10.5, 12.0]
    assert found.joined_at(1) == 2, "the call at 11 s was sent while the sub-agent still ran"
    assert len(root.calls) == 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request(-1, [1]), ["requests[1]", "'t' is -1"]),
        (request(0, [1], type="x"), ["'type' is 'x'", "'n', 's' or 'subagent'"]),
        (request(0, [1]) | {"in": 640}, ["'hash_ids'", "10 to 10 ids for 640 tokens"]),
        (request(0, [1]) | {"out": None}, ["'out'"]),
        (request(0, [1], think_time="long"), ["'think_time' is 'long'"]),
        (7, ["expected a JSON object"]),
        ({"t": 0, "type": "subagent", "agent_id": 5, "requests": []}, ["'agent_id' is 5"]),
        (subagent(1, subagent(1, request(0, [1]))), ["sub-agent within a sub-agent"]),
    ],
)
def test_a_bad_request_is_named_or_skipped(tmp_path: Path, bad: object, words: list[str]) -> None:
    put(tmp_path, session(request(0, [1]), bad))
    with pytest.raises(ConfigError) as caught:
        read_weka(tmp_path)
    for word in ["0.json", *words]:
        assert word in str(caught.value)
    trace = read_weka(tmp_path, skip_bad=True)
    assert len(trace.skipped) == 1
    assert len(trace.sessions[0].root.calls) == 1


def test_mixed_block_sizes_are_two_traces(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mixes block sizes \[32, 64\]"):
        read_weka(put(tmp_path, session(request(0, [1])), session(request(0, [1]) | {"in": 32}, block_size=32)))


seconds = st.integers(0, 10_000).map(lambda value: Seconds(value / 100))


@st.composite
def calls(draw: st.DrawFn, base: int) -> tuple[Call, ...]:
    made, clock = [], 0.0
    for _ in range(draw(st.integers(1, 4))):
        clock = round(clock + draw(seconds), 2)
        count = draw(st.integers(0, 4))
        made.append(
            Call(
                input_tokens=64 * count + draw(st.integers(0, 63)),
                output_tokens=draw(st.integers(0, 100)),
                blocks=tuple(
                    base + name for name in draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
                ),
                start=Seconds(clock),
                think_time=draw(st.none() | seconds),
                server_time=draw(st.none() | seconds),
                model=draw(st.none() | st.sampled_from(["x", "y"])),
                streamed=draw(st.booleans()),
                stop=draw(st.none() | st.just("tool_use")),
            )
        )
    return tuple(made)


@st.composite
def trace_sessions(draw: st.DrawFn) -> Trace:
    sessions = []
    for number in range(draw(st.integers(1, 3))):
        base = number << 32
        root = Agent("root", draw(calls(base)), start=Seconds(0.0), system_tokens=draw(st.integers(0, 9)))
        agents = [root]
        for child in range(draw(st.integers(0, 2))):
            after = max(draw(st.integers(0, len(root.calls))), agents[-1].after)
            agents.append(Agent(f"a{child}", draw(calls(base)), 0, after, Seconds(0.0), duration=draw(seconds)))
        sessions.append(TraceSession(f"s{number}", tuple(agents)))
    return Trace("trip", tuple(sessions), 64)


@settings(max_examples=40, deadline=None)
@given(trace_sessions())
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    folder = tmp_path_factory.mktemp("trip") / "trip"
    write_weka(trace, folder)
    assert read_weka(folder) == trace


@pytest.mark.parametrize(("part", "count", "agents"), [("main", 1021, 62), ("subagents", 506, 21)])
def test_the_public_sessions(traces: Path, tmp_path: Path, part: str, count: int, agents: int) -> None:
    trace = read_weka(traces / "claude_code_weka" / "thin16" / part)
    assert len(list(trace.calls)) == count
    assert sum(len(session.agents) for session in trace.sessions) == agents
    write_weka(trace, tmp_path / part)
    assert read_weka(tmp_path / part) == trace

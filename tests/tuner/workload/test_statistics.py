"""Statistics against golden numbers and a slow twin; thinning keeps what a cache would find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from energyopt.cli.main import build_app
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from tuner.workload.statistics import Spread, describe, prefix_hits
from tuner.workload.thin import Thinning, thin
from tuner.workload.trace import Agent, Call, Trace, TraceSession
from tuner.workload.weka import read_weka

BLOCK = 4


def trace_of(prompts: list[list[int]]) -> Trace:
    sessions = (
        TraceSession(f"s{n}", (Agent("root", (Call(BLOCK * len(p), 5, tuple(p), Seconds(0)),)),), Seconds(n))
        for n, p in enumerate(prompts)
    )
    return Trace("t", tuple(sessions), BLOCK)


def chained(words: list[list[int]]) -> list[list[int]]:
    """Prompts as ids that stand for a block behind its prefix, numbered in the order of first sight."""
    names: dict[tuple[int, ...], int] = {}
    return [[names.setdefault(tuple(p[: i + 1]), len(names)) for i in range(len(p))] for p in words]


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8).map(chained)


@settings(deadline=None)
@given(prompts)
def test_hits_are_the_longest_common_prefix_with_any_earlier_prompt(made: list[list[int]]) -> None:
    for index, hits in enumerate(prefix_hits(trace_of(made).timeline())):
        slow = 0
        for earlier in made[:index]:
            common = 0
            while common < min(len(earlier), len(made[index])) and earlier[common] == made[index][common]:
                common += 1
            slow = max(slow, common)
        assert hits == slow


@settings(deadline=None)
@given(prompts, st.integers(1, 4))
def test_thinning_keeps_exactly_the_kept_part_of_every_hit(made: list[list[int]], keep: int) -> None:
    trace = trace_of(made)
    thinned = thin(trace, Thinning(keep_one_in=keep))
    pairs = zip(trace.timeline(), prefix_hits(trace.timeline()), prefix_hits(thinned.timeline()), strict=True)
    for timed, before, after in pairs:
        assert after == sum(name % keep == 0 for name in timed.call.blocks[:before])
    assert thinned.block_tokens == BLOCK


def test_thinning_by_one_changes_nothing(conversation: Trace) -> None:
    assert thin(conversation, Thinning(sessions=300)).sessions == conversation.sessions[:300]


def test_thinning_needs_block_ids() -> None:
    trace = Trace("t", (TraceSession("s", (Agent("root", (Call(100, 5),)),)),))
    with pytest.raises(ConfigError, match="block ids"):
        thin(trace, Thinning(keep_one_in=2))
    with pytest.raises(ConfigError, match="at least 1"):
        Thinning(keep_one_in=0)


def test_our_thinning_is_the_published_one(traces: Path) -> None:
    """thin16 was made by another program from the full traces: one block in 16, outputs / 8, times / 20."""
    whole = read_weka(traces / "claude_code_weka" / "subagents")
    ours = thin(whole, Thinning(keep_one_in=16, output_divisor=8, time_divisor=20))
    theirs = read_weka(traces / "claude_code_weka" / "thin16" / "subagents")
    rates = [describe(trace).reuse for trace in (ours, theirs)]
    assert [[call.blocks for call in trace.calls] for trace in (ours,)] == [[call.blocks for call in theirs.calls]]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0].hit_rate == pytest.approx(rates[1].hit_rate)


def test_golden_numbers_of_the_conversation_trace(conversation: Trace) -> None:
    found = describe(conversation)
    assert found.reuse is not None
    assert round((found.reuse.hit_rate or 0) * 100, 2) == 36.64
    assert round((found.reuse.token_hit_rate or 0) * 100, 2) == 37.36
    assert found.input_tokens is not None
    assert (found.input_tokens.p50, found.input_tokens.p90, found.input_tokens.max) == (6909, 27_367, 126_195)
    assert found.arrivals is not None
    assert round(found.arrivals.rate, 2) == 3.40


@pytest.mark.parametrize(("part", "rate"), [("main", 91.7), ("subagents", 94.2)])
def test_golden_numbers_of_the_agentic_traces(traces: Path, part: str, rate: float) -> None:
    reuse = describe(read_weka(traces / "claude_code_weka" / "thin16" / part)).reuse
    assert reuse is not None
    assert round((reuse.hit_rate or 0) * 100, 1) == rate


def test_a_spread_is_made_of_real_values() -> None:
    spread = Spread.of([5.0, 1.0, 2.0])
    assert spread is not None
    assert (spread.p10, spread.p50, spread.p99, spread.max) == (1.0, 2.0, 5.0, 5.0)
    assert Spread.of([]) is None


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(build_app(words), list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


GOOD = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [0, %d]}'


def test_describe_prints_json(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", GOOD % (0, 1), GOOD % (1000, 2))
    code, out, _ = run("workload", "describe", file, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["reuse"]["ideal_hit_rate"] == 0.25
    assert found["arrivals"]["rate"] == 1.0


def test_describe_says_what_it_skipped(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", GOOD % (0, 1), '{"timestamp": 5, "input_length": -1}')
    with pytest.raises(ConfigError, match=r"t\.jsonl line 2.*'input_length' is -1"):
        run("workload", "describe", file)
    code, out, err = run("workload", "describe", file, "--skip-bad")
    assert code == 0
    assert "1 requests in 1 sessions, 1 rows skipped" in out
    assert "skipped: t.jsonl line 2" in err
    assert "ideal hit rate: 0.00 % of 512-token blocks" in out


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5))
def test_a_session_without_times_is_described(count: int) -> None:
    calls = tuple(Call(None, None, messages=({"role": "user", "content": "x"},)) for _ in range(count + 1))
    found = describe(Trace("t", (TraceSession("s", (Agent("root", calls),)),)))
    assert (found.requests, found.reuse, found.arrivals, found.input_tokens) == (count + 1, None, None, None)

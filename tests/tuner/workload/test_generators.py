"""Seeded generators: the same seed the same trace, the shape that was asked for, and what the round trip keeps."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from energyopt.core.errors import ConfigError
from tuner.workload.agentic import AgenticShape, agentic_trace
from tuner.workload.arrivals import BurstArrivals, GammaArrivals, parse_arrivals
from tuner.workload.chat import chat_workload
from tuner.workload.lengths import Lengths, UniformLength, parse_length
from tuner.workload.statistics import describe
from tuner.workload.synthetic import TextShape, synthetic_trace, trace_of
from tuner.workload.weka import read_weka, write_weka


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_arrivals_have_their_rate_and_variation(cv: float) -> None:
    times = GammaArrivals(4.0, cv).times(20_000, random.Random(1))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 1 / fmean(gaps) == pytest.approx(4.0, rel=0.08)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.08)


def test_bursts_come_together() -> None:
    times = BurstArrivals(4.0, 8).times(8000, random.Random(1))
    assert len(set(times)) == 1000
    assert len(times) / times[-1] == pytest.approx(4.0, rel=0.1)


def test_a_metronome_is_even() -> None:
    assert parse_arrivals("constant:2").times(3, random.Random(0)) == [0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    "text", ["poisson", "poisson:0", "gamma:1", "burst:1,0", "poisson:1,2", "gamma:1,1.2.3", "x:1"]
)
def test_bad_arrivals_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_arrivals(text)


def test_lengths_have_a_text_form() -> None:
    assert parse_length("256") == UniformLength(256, 256)
    assert parse_length("10..20") == UniformLength(10, 20)
    drawn = parse_length("200~0.6")
    assert isinstance(drawn, Lengths)
    assert median(drawn.draw(random.Random(i)) for i in range(999)) == pytest.approx(200, rel=0.1)
    for text in ("0", "20..10", "a", "5..", "1~1.2.3"):
        with pytest.raises(ConfigError):
            parse_length(text)


def test_a_seed_names_a_trace() -> None:
    shape = AgenticShape().scaled(32)
    assert agentic_trace(3, sessions=2, shape=shape) == agentic_trace(3, sessions=2, shape=shape)
    assert agentic_trace(3, sessions=2, shape=shape) != agentic_trace(4, sessions=2, shape=shape)


def test_agentic_sessions_look_agentic(tmp_path: Path) -> None:
    trace = agentic_trace(1, sessions=8, shape=AgenticShape(branching=0.2).scaled(32))
    found = describe(trace)
    assert found.reuse is not None
    assert (found.reuse.hit_rate or 0) > 0.8
    assert found.sub_agents > 10
    for session in trace.sessions:
        for child in range(1, len(session.agents)):
            joined = session.joined_at(child)
            assert joined in (session.agents[child].after, None)
    write_weka(trace, tmp_path / "w")
    again = describe(read_weka(tmp_path / "w"))
    assert (again.requests, again.input_tokens) == (found.requests, found.input_tokens)


def test_blocks_of_a_growing_prompt_are_a_prefix_of_the_next() -> None:
    shape = TextShape(input=UniformLength(50, 90), turns=UniformLength(4, 4), shared_tokens=200)
    trace = synthetic_trace(0, sessions=3, shape=shape, arrivals=parse_arrivals("poisson:1"))
    fronts = set()
    for session in trace.sessions:
        calls = session.root.calls
        for earlier, later in itertools.pairwise(calls):
            assert later.blocks[: len(earlier.blocks)] == earlier.blocks
        for call in calls:
            assert len(call.blocks) == (call.input_tokens or 0) // 64
        fronts.add(calls[0].blocks[:3])
    assert len(fronts) == 1, "the system prompt is shared"
    assert [s.arrival for s in trace.sessions] == sorted(s.arrival or 0 for s in trace.sessions)


def test_a_chat_workload_as_a_trace() -> None:
    workload = chat_workload(1, sessions=3)
    trace = trace_of(workload)
    assert [call.output_tokens for call in trace.calls] == [t.output_tokens for s in workload.sessions for t in s.turns]
    first = next(trace.calls)
    assert [message["role"] for message in first.messages] == ["system", "user"]

"""The chat workload is the same for the same seed, shares nothing between seeds, and keeps its bounds."""

from __future__ import annotations

import re
import time
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from energyopt.core.workload import Workload
from tuner.workload.chat import ChatShape, chat_workload
from tuner.workload.lengths import Lengths


def texts(workload: Workload) -> list[str]:
    return [turn.text for session in workload.sessions for turn in session.turns]


@given(st.integers(0, 2**31), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_equal_arguments_give_an_equal_workload(seed: int, sessions: int) -> None:
    first = chat_workload(seed, sessions=sessions)
    assert first == chat_workload(seed, sessions=sessions)
    assert first.digest() == chat_workload(seed, sessions=sessions).digest()
    assert (first.seed, len(first.sessions)) == (seed, sessions)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_two_seeds_share_no_prompt_not_even_its_beginning(one: int, other: int) -> None:
    if one == other:
        return
    a, b = chat_workload(one, sessions=10), chat_workload(other, sessions=10)
    assert not {" ".join(t.split()[:2]) for t in texts(a)} & {" ".join(t.split()[:2]) for t in texts(b)}
    assert not {s.system for s in a.sessions} & {s.system for s in b.sessions}
    assert not {s.id for s in a.sessions} & {s.id for s in b.sessions}
    bodies = [[t.split(": ", 1)[1] for t in texts(w)] for w in (a, b)]  # what follows the label differs too
    assert bodies[0] != bodies[1]


def test_no_text_repeats_within_a_workload() -> None:
    found = texts(chat_workload(1, sessions=300))
    assert len(set(found)) == len(found)


def test_sessions_share_their_system_prompt() -> None:
    assert len({s.system for s in chat_workload(1, sessions=40).sessions}) == 1
    assert len({s.system for s in chat_workload(1, sessions=40, shape=ChatShape(systems=3)).sessions}) == 3
    assert {s.system for s in chat_workload(1, sessions=4, shape=ChatShape(system_words=0)).sessions} == {None}


def test_lengths_and_turns_keep_their_bounds_and_their_median() -> None:
    shape = ChatShape()
    workload = chat_workload(5, sessions=400, shape=shape)
    turns = [turn for session in workload.sessions for turn in session.turns]
    words = [len(turn.text.split()) - 2 for turn in turns]  # without the label
    answers = [turn.output_tokens for turn in turns]
    assert shape.user.low <= min(words) < max(words) <= shape.user.high
    assert shape.answer.low <= min(answers) < max(answers) <= shape.answer.high
    assert median(words) == pytest.approx(shape.user.median, rel=0.15)
    assert median(answers) == pytest.approx(shape.answer.median, rel=0.15)
    assert {len(session.turns) for session in workload.sessions} == {2, 3, 4}


def test_the_text_is_made_of_words_in_sentences() -> None:
    for text in texts(chat_workload(3, sessions=20)):
        assert re.fullmatch(r"Note 3\.\d+\.\d+: ([A-Z]?[a-z]+\.? ?)+", text)
        assert text.endswith(".")
        assert max(map(len, text.split(": ", 1)[1].split())) < 15


def test_plenty_of_sessions_are_cheap() -> None:
    began = time.process_time()
    workload = chat_workload(0)
    assert len(workload.sessions) >= 512
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("low", "median_", "high", "spread"), [(0, 5, 9, 0.5), (6, 5, 9, 0.5), (1, 10, 9, 0.5), (1, 5, 9, -1.0)]
)
def test_impossible_lengths_are_refused(low: int, median_: int, high: int, spread: float) -> None:
    with pytest.raises(ConfigError, match="low <= median <= high"):
        Lengths(median=median_, spread=spread, low=low, high=high)


def test_impossible_shapes_and_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="is no range"):
        ChatShape(turns=(3, 2))
    with pytest.raises(ConfigError, match="systems 0"):
        ChatShape(systems=0)
    with pytest.raises(ConfigError, match="sessions 0"):
        chat_workload(0, sessions=0)
    with pytest.raises(ConfigError, match="concurrency 0"):
        chat_workload(0, concurrency=0)

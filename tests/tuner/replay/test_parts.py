"""Small parts: events out of bytes, tokens over chunks, prompts, foresight, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import ConfigError, EngineError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.units import Seconds
from engine.model.gguf_file import GgufFile
from engine.models import resolve_model
from engine.tokenizer import from_gguf
from tuner.replay.ask import Reply
from tuner.replay.content import COMMON, IdFiller, WordFiller, fill
from tuner.replay.fake import PrefixMemory
from tuner.replay.foresight import Foresight
from tuner.replay.pacer import Pace, Pacer
from tuner.replay.render import Calibration, ChatRenderer, Conversation, IdRenderer
from tuner.replay.sse import MAX_EVENT_BYTES, SseParser
from tuner.replay.tokens import spread_tokens
from tuner.workload.lengths import UniformLength
from tuner.workload.statistics import prefix_hits
from tuner.workload.synthetic import TextShape, synthetic_trace
from tuner.workload.trace import Call


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=20).filter(lambda d: not set(d) & set(b"\r\n")), max_size=6), st.data())
def test_events_do_not_depend_on_how_bytes_come(events: list[bytes], data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    stream = b"".join(b": comment" + ending + b"data: " + event + ending + ending for event in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    parser = SseParser()
    assert [event for piece in pieces for event in parser.feed(piece)] == events


def test_an_event_without_end_is_refused() -> None:
    parser = SseParser()
    with pytest.raises(EngineError, match="event of more than"):
        parser.feed(b"data: " + b"x" * (MAX_EVENT_BYTES + 1))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 60), st.lists(st.integers(1, 30), max_size=12))
def test_spread_tokens_lose_none(count: int, sizes: list[int]) -> None:
    shares, known = spread_tokens(count, sizes, [None] * len(sizes))
    if sizes:
        assert sum(shares) == count
        assert all(share >= 0 for share in shares)
        assert (shares[0] >= 1) == (count >= 1)
        assert known == (count == len(sizes))
    if count >= len(sizes):
        assert all(share >= 1 for share in shares)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.integers(0, 3))
def test_told_totals_are_believed(sizes: list[int], after: int) -> None:
    totals: list[int | None] = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    shares, known = spread_tokens(sum(sizes) + after, [1] * len(sizes), totals)
    assert known
    assert shares == [*sizes[:-1], sizes[-1] + after]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 60))
def test_equal_blocks_are_equal_content(blocks: list[int], units: int) -> None:
    filler = IdFiller()
    made = fill(filler, blocks, 8, units, salt="", unique="a")
    assert len(made) == units
    again = fill(filler, blocks, 8, units, salt="", unique="b")
    covered = min(units, 8 * len(blocks))
    assert made[:covered] == again[:covered]
    if covered >= 8:
        assert made[:covered] != fill(filler, blocks, 8, units, salt="other", unique="a")[:covered]


def test_words_are_single_tokens_behind_a_space() -> None:
    tokenizer = from_gguf(GgufFile(resolve_model("smollm2-135m")).metadata, Path("demo.gguf"))
    assert [word for word in COMMON if len(tokenizer.encode(" " + word)) != 1] == []


def record(text: str = "") -> Reply:
    made = RequestRecord("r", Seconds(0), Seconds(1), 1, 0, 1, FinishReason.STOP)
    return Reply(made, text=text)


def test_live_or_recorded_answers_stand_in_the_history() -> None:
    first = Call(None, 3, messages=({"role": "user", "content": "a"},), answer="recorded")
    second = Call(None, 3, messages=({"role": "user", "content": "b"},), continues=True)
    for answers, expected in (("live", "live"), ("recorded", "recorded")):
        renderer = ChatRenderer(None, calibration=Calibration(), answers=answers)  # type: ignore[arg-type]
        talk = Conversation("s", "")
        renderer.prompt(talk, first, "0.0")
        renderer.heard(talk, first, record("live"))
        messages = renderer.prompt(talk, second, "0.1").messages or ()
        assert [message["content"] for message in messages] == ["a", expected, "b"]


def test_a_salt_marks_texts_and_changes_filler() -> None:
    renderer = ChatRenderer(4, calibration=Calibration(overhead=2))
    text = Call(None, 3, messages=({"role": "user", "content": "a"},))
    assert (renderer.prompt(Conversation("s", "x"), text, "0").messages or ())[0]["content"] == "(x) a"
    filled = Call(10, 3, (1, 2))
    plain, salted = (renderer.prompt(Conversation("s", salt), filled, "0").messages or () for salt in ("", "x"))
    assert plain != salted
    assert [len(str(m[0]["content"]).split()) for m in (plain, salted)] == [8, 8]


def test_texts_have_no_known_token_ids() -> None:
    with pytest.raises(ConfigError, match="replay it as chats"):
        IdRenderer(None).prompt(Conversation("s", ""), Call(None, 3), "0")


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([16, 32, 64]))
def test_foresight_is_what_a_cache_of_that_block_finds(seed: int, block: int) -> None:
    """The slow twin caches the real token ids that are sent."""
    shape = TextShape(UniformLength(1, 150), UniformLength(1, 40), UniformLength(1, 4), shared_tokens=128)
    trace = synthetic_trace(seed, sessions=4, shape=shape)
    foresight, memory, renderer = Foresight(64), PrefixMemory(64), IdRenderer(64)
    for session in trace.sessions:
        for index, call in enumerate(session.root.calls):
            ids = renderer.prompt(Conversation(session.id, ""), call, str(index)).ids or ()
            assert foresight.cached(call, "") == memory.cached(ids)
    assert sum(prefix_hits(trace.timeline())) >= 0


async def test_a_pacer_waits_and_leaps() -> None:
    clock = MonotonicClock()
    pacer = Pacer(clock, Seconds(0.05))
    begun = clock.now()
    await asyncio.gather(pacer.wait_until(pacer.now + 50.0), pacer.wait_until(pacer.now + 100.0))
    assert clock.now() - begun < 5.0
    assert 99.0 < pacer.skipped < 100.0


async def test_a_pacer_does_not_leap_while_something_is_in_flight() -> None:
    clock = MonotonicClock()
    pacer = Pacer(clock, Seconds(0.01))
    pacer.busy()
    await pacer.wait_until(pacer.now + 0.1)
    assert pacer.skipped == 0.0


def test_a_pace_divides_and_caps() -> None:
    assert Pace(speedup=2.0).of(3.0) == 1.5
    assert Pace(gap_cap=Seconds(1.0)).of(3.0) == 1.0
    assert Pace(waits=False).of(3.0) == 0.0
    with pytest.raises(ConfigError):
        Pace(speedup=0.0)


def test_a_filler_begins_the_same_whatever_its_length() -> None:
    filler: Sequence[WordFiller | IdFiller] = (WordFiller(1), IdFiller(1))
    for one in filler:
        assert list(one.block("x", 5)) == list(one.block("x", 9))[:5]

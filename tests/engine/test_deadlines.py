"""Which streams are over at a time, against a plain list; and when a request is complete."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.records import FinishReason
from energyopt.core.units import Seconds
from engine.deadlines import Deadlines
from engine.detokenize import Detokenizer
from engine.ending import Endings
from engine.fake import FakeTokenizer
from engine.request import Request, SamplingParams
from engine.stream import Stream

LIMITS = st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(1, 20)), max_size=30)


@given(LIMITS, st.sets(st.integers(0, 29)))
def test_each_is_told_once_at_its_time_unless_it_ended(limits: list[tuple[int, int | None]], ended: set[int]) -> None:
    async def streams() -> list[Stream]:
        return [
            Stream(
                Request(str(n), (0,), SamplingParams(timeout=None if t is None else Seconds(t)), Seconds(a)),
                Detokenizer(FakeTokenizer()),
            )
            for n, (a, t) in enumerate(limits)
        ]

    made = asyncio.run(streams())
    deadlines = Deadlines()
    for stream in made:
        deadlines.watch(stream)
    for number in ended & set(range(len(made))):
        made[number].request.finish_reason = FinishReason.STOP
    told: dict[str, int] = {}
    for now in range(45):
        for stream in deadlines.due(Seconds(now)):
            if stream.request.finish_reason is None:
                told[stream.request.id] = now
    assert told == {str(n): a + t for n, (a, t) in enumerate(limits) if t is not None and n not in ended}
    assert not deadlines.any


@pytest.mark.parametrize(
    ("output", "options", "reason"),
    [
        ([5, 7], {}, None),
        ([5, 9], {}, FinishReason.STOP),
        ([5, 9], {"ignore_eos": True}, None),
        ([5, 8], {"stop_token_ids": (8,)}, FinishReason.STOP),
        ([5, 8], {"stop_token_ids": (8,), "min_tokens": 3}, None),
        ([5, 9], {"min_tokens": 3}, None),
        ([5, 5, 9], {"min_tokens": 3}, FinishReason.STOP),
        ([5, 5, 5, 5], {}, FinishReason.LENGTH),
        ([5, 5, 5, 9], {}, FinishReason.STOP),
    ],
)
def test_which_token_ends_an_answer(output: list[int], options: dict[str, object], reason: FinishReason | None) -> None:
    request = Request("r", (1,), SamplingParams(max_tokens=4, **options), Seconds(0.0), output=output)  # type: ignore[arg-type]
    assert Endings(frozenset({9})).reason(request) is reason


async def test_streams_that_ended_are_not_kept_until_their_time() -> None:
    deadlines, living = Deadlines(), 0
    for number in range(5000):
        params = SamplingParams(timeout=Seconds(1e6))
        stream = Stream(Request(str(number), (0,), params, Seconds(0.0)), Detokenizer(FakeTokenizer()))
        deadlines.watch(stream)
        if number % 50:
            stream.request.finish_reason = FinishReason.STOP
        else:
            living += 1
    assert living == 100 <= len(deadlines) < 500
    assert len(deadlines.due(Seconds(1e6))) >= living

"""The fakes must catch what they are there to catch, or every test that stands on them proves nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from energyopt.core.errors import EngineError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, CacheShape, Runner, ScheduledRequest
from engine.fake import FakeRunner, FakeTokenizer
from engine.ports import Tokenizer
from engine.request import Request, SamplingParams

SHAPE = CacheShape(num_blocks=8, block_tokens=2, bytes_per_block=Bytes(1))


def request(prompt: list[int], blocks: list[int], name: str = "r", *, logprobs: int | None = None) -> Request:
    made = Request(name, tuple(prompt), SamplingParams(logprobs=logprobs), Seconds(0.0))
    made.block_ids = blocks
    return made


def chunk(one: Request, start: int, count: int) -> ScheduledRequest:
    return ScheduledRequest(one, start, count, start + count == one.num_tokens)


def sample(runner: Runner, *items: ScheduledRequest) -> list[int | None]:
    return [None if one is None else one.token for one in runner.run(Batch(items)).sampled]


def test_the_token_depends_on_the_tokens_and_on_nothing_else() -> None:
    whole, chunked = FakeRunner(SHAPE), FakeRunner(SHAPE)
    one, other = request([5, 6, 7], [0, 1]), request([5, 6, 7], [7, 3], "other name")
    (token,) = sample(whole, chunk(one, 0, 3))
    assert sample(chunked, chunk(other, 0, 2)) == [None]
    assert sample(chunked, chunk(other, 2, 1)) == [token]
    answers = {tuple(sample(FakeRunner(SHAPE), chunk(request([5, 6, n], [0, 1]), 0, 3))) for n in range(40)}
    assert len(answers) > 10


def test_reading_another_requests_block_is_caught() -> None:
    runner = FakeRunner(SHAPE)
    sample(runner, chunk(request([1, 2], [0], "a"), 0, 2))
    with pytest.raises(EngineError, match="'b' reads another prefix at position 0, block 0"):
        sample(runner, chunk(request([3, 4, 5], [0, 1], "b"), 2, 1))


def test_reading_what_was_never_written_is_caught() -> None:
    with pytest.raises(EngineError, match="position 0 in block 4: never written"):
        sample(FakeRunner(SHAPE), chunk(request([1, 2, 3], [4, 5]), 2, 1))


def test_writing_one_block_for_two_requests_is_caught() -> None:
    items = [chunk(request([n], [3], str(n)), 0, 1) for n in range(2)]
    with pytest.raises(EngineError, match="'0' and '1' both write KV block 3"):
        sample(FakeRunner(SHAPE), *items)


def test_reading_what_the_same_step_writes_is_caught() -> None:
    items = [chunk(request([1, 2], [0], "a"), 0, 2), chunk(request([1, 2, 3], [0, 1], "b"), 2, 1)]
    with pytest.raises(EngineError, match="never written"):
        sample(FakeRunner(SHAPE), *items)


@pytest.mark.parametrize("step_time", [0.25, lambda batch: batch.num_tokens / 8])
def test_a_step_takes_the_time_it_was_told(step_time: float | Callable[[Batch], float]) -> None:
    clock = FakeClock(10.0)
    result = FakeRunner(SHAPE, clock, step_time=step_time).run(Batch((chunk(request([1, 2], [0]), 0, 2),)))
    assert (result.start, result.end) == (10.0, 10.25)
    assert clock.now() == 10.25


def test_it_says_what_it_was_told_to_say() -> None:
    runner, one = FakeRunner(SHAPE, say=[40, 41]), request([1], [0, 1, 2])
    for token in (40, 41, 40):
        assert sample(runner, chunk(one, one.num_tokens - 1, 1)) == [token]
        one.output.append(token)


def test_logprobs_name_the_chosen_token_and_as_many_as_asked() -> None:
    for wanted in (0, 3):
        one = request([1], [0], logprobs=wanted)
        (sampled,) = FakeRunner(SHAPE).run(Batch((chunk(one, 0, 1),))).sampled
        assert sampled is not None
        assert sampled.logprobs is not None
        assert len(sampled.logprobs.top) == wanted
        assert all(token == sampled.token for token, _ in sampled.logprobs.top[:1])


def test_it_fails_when_told_and_refuses_misuse() -> None:
    runner = FakeRunner(SHAPE, fail_at=1)
    item = chunk(request([1], [0]), 0, 1)
    sample(runner, item)
    with pytest.raises(EngineError, match="failed at step 1"):
        sample(runner, item)
    shared, errors = FakeRunner(SHAPE), list[str]()
    sample(shared, item)

    def other_thread() -> None:
        try:
            sample(shared, item)
        except EngineError as error:
            errors.append(error.message)

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert errors == ["The fake runner was called from a second thread."]
    shared.close()
    with pytest.raises(EngineError, match="after it was closed"):
        sample(shared, item)


@given(st.text())
def test_the_tokenizer_round_trips(text: str) -> None:
    tokenizer: Tokenizer = FakeTokenizer()
    for special in (True, False):
        assert tokenizer.decode(tokenizer.encode(text, special=special), skip_special=False) == text


def test_special_tokens() -> None:
    tokenizer = FakeTokenizer()
    ids = tokenizer.encode("<|user|>hi<|end|>")
    assert ids == [258, *b"hi", 256]
    assert tokenizer.eos_ids == {256}
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.token_text(258) == "<|user|>"
    assert 258 not in tokenizer.encode("<|user|>", special=False)
    assert max(ids) < tokenizer.vocab_size
    assert tokenizer.decode([0xC3]) == "\ufffd"

"""Scheduling rules one by one, then random workloads that must always drain with nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import EngineError, PromptTooLongError
from energyopt.core.records import FinishReason, Phase
from energyopt.core.units import Seconds
from engine.batch import StepResult
from engine.request import Request, SamplingParams, Status

if TYPE_CHECKING:
    from tests.engine.conftest import Rig


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks(make_rig: type[Rig]) -> None:
    rig = make_rig(max_num_batched_tokens=8)
    request = rig.add(range(20), max_tokens=3)
    rig.drain()
    assert [share.computed_tokens for record in rig.records for share in record.shares] == [8, 8, 4, 1, 1]
    assert [share.context_tokens for record in rig.records for share in record.shares] == [0, 8, 16, 20, 21]
    assert request.finish_reason is FinishReason.LENGTH


def test_the_step_of_the_first_token_is_still_prefill(make_rig: type[Rig]) -> None:
    rig = make_rig()
    request = rig.add([1], max_tokens=3)
    rig.drain()
    phases = [share.phase for record in rig.records for share in record.shares]
    assert phases == [Phase.PREFILL, Phase.DECODE, Phase.DECODE]
    assert request.token_times == [record.end for record in rig.records]


def test_decodes_go_before_chunks_and_chunks_take_the_rest(make_rig: type[Rig]) -> None:
    rig = make_rig(max_num_batched_tokens=8)
    short, long = rig.add([1, 2], max_tokens=6, name="short"), rig.add(range(40), name="long")
    rig.step()
    rig.step()
    batch = rig.batches[-1]
    assert [(item.request, item.count) for item in batch.items] == [(short, 1), (long, 7)]


def test_sequences_are_limited_and_admitted_in_order_of_arrival(make_rig: type[Rig]) -> None:
    rig = make_rig(max_num_seqs=2)
    requests = [rig.add([number], max_tokens=2, name=str(number)) for number in range(5)]
    rig.step()
    assert [request.status for request in requests] == [Status.RUNNING] * 2 + [Status.WAITING] * 3
    rig.drain()
    firsts = [request.token_times[0] for request in requests]
    assert firsts == sorted(firsts)


def test_the_youngest_is_preempted_and_comes_back_first(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=6, block_tokens=4, max_num_seqs=2)
    old, young = rig.add(range(7), max_tokens=12, name="old"), rig.add(range(50, 57), max_tokens=12, name="young")
    late = rig.add([99], max_tokens=1, name="late")
    while not young.num_preemptions:
        rig.step()
    kept = list(young.output)
    assert kept
    assert young.status is Status.PREEMPTED
    assert old.num_preemptions == 0
    assert rig.scheduler.counters.preemptions == 1
    rig.drain()
    assert young.output[: len(kept)] == kept
    assert len(young.output) == 12
    assert young.token_times[-1] > old.token_times[-1]
    assert late.token_times[0] > young.token_times[len(kept)] - Seconds(1e-9)


def test_an_admission_leaves_the_running_a_block_to_grow_into(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=4, block_tokens=4)
    first, second = rig.add(range(7), max_tokens=6), rig.add(range(50, 55), max_tokens=2)
    rig.drain()
    assert rig.scheduler.counters.preemptions == 0
    assert second.token_times[0] > first.token_times[-1]


def test_nobody_overtakes_a_request_that_waits_for_blocks(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=8, block_tokens=4)
    rig.add(range(10), max_tokens=8)
    large, small = rig.add(range(100, 120), max_tokens=2), rig.add([1], max_tokens=1)
    rig.drain()
    assert large.token_times[0] <= small.token_times[0]


def test_a_prompt_takes_the_blocks_that_are_left_and_waits_for_more(make_rig: type[Rig]) -> None:
    # The decode eats a block a step while the prompt is computed in chunks of three: at last one block is left.
    rig = make_rig(num_blocks=15, block_tokens=1, max_num_batched_tokens=4, max_num_seqs=4)
    decode = rig.add([1], max_tokens=8, name="decode")
    rig.step()
    prompt = rig.add(range(50, 62), max_tokens=1, name="prompt")
    rig.drain()
    chunks = [s.computed_tokens for record in rig.records for s in record.shares if s.request_id == "prompt"]
    assert chunks[:4] == [3, 3, 3, 1]
    assert rig.scheduler.counters.preemptions == prompt.num_preemptions == 1
    assert len(decode.output) == 8


def test_blocks_held_by_nobody_we_know_end_the_engine_loudly(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=4, block_tokens=4)
    rig.add(range(4), max_tokens=9)
    assert rig.step()
    rig.cache.pool.allocate(3)
    with pytest.raises(EngineError, match="runs alone and the KV pool is still too small"):
        rig.scheduler.schedule()


def test_a_request_that_comes_back_as_a_decode_stands_with_the_decodes(make_rig: type[Rig]) -> None:
    # With blocks of one token the cache may hold all of a preempted request but its newest token.
    rig = make_rig(num_blocks=30, block_tokens=1, max_num_batched_tokens=8)
    for number, prompt in enumerate([[0], [0] * 5, [1, 0], [0]]):
        rig.add(prompt, max_tokens=9, name=str(number))
    rig.drain()  # the rig checks the order of every batch
    assert rig.scheduler.counters.preemptions > 0


def test_readmission_after_preemption_counts_no_prompt_twice(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=6, block_tokens=4, max_num_seqs=2)
    requests = [rig.add(range(base, base + 7), max_tokens=12) for base in (0, 50)]
    rig.drain()
    counters = rig.scheduler.counters
    assert counters.preemptions > 0
    assert counters.prompt_tokens == sum(len(request.prompt) for request in requests)
    assert sum(counters.prompt_by_source.values()) == counters.prompt_tokens
    assert all(not share.cached_tokens for record in rig.records for share in record.shares)


def test_cached_tokens_are_reported_once_in_the_step_of_admission(make_rig: type[Rig]) -> None:
    rig = make_rig(max_num_batched_tokens=8)
    rig.add(range(17), max_tokens=1)
    rig.drain()
    seen = len(rig.records)
    again = rig.add([*range(16), *range(30, 45)], max_tokens=3)
    rig.drain()
    shares = [share for record in rig.records[seen:] for share in record.shares]
    assert [dict(share.cached_tokens) for share in shares] == [{"device": 16}, {}, {}, {}]
    assert [(share.context_tokens, share.computed_tokens) for share in shares] == [(16, 8), (24, 7), (31, 1), (32, 1)]
    assert (again.cached_tokens, again.cached_by_tier) == (16, {"device": 16})
    assert dict(rig.scheduler.counters.prompt_by_source) == {"local_compute": 17 + 15, "device": 16}


def test_what_never_fits_is_refused_and_what_just_fits_runs(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=4, block_tokens=4)
    with pytest.raises(PromptTooLongError, match=r"10 tokens and max_tokens is 8, which takes 5 .* pool has 4"):
        rig.add(range(10), max_tokens=8)
    assert not rig.scheduler.has_work
    request = rig.add(range(10), max_tokens=7)
    rig.drain()
    assert len(request.output) == 7


def test_the_context_limits_prompt_and_answer(make_rig: type[Rig]) -> None:
    rig = make_rig(max_model_len=20)
    with pytest.raises(PromptTooLongError, match="21 tokens: the context holds 20"):
        rig.add(range(21), max_tokens=1)
    with pytest.raises(PromptTooLongError, match="23 together: the context holds 20") as caught:
        rig.add(range(18), max_tokens=5)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("ignore_eos", "stop_ids", "tokens", "reason"),
    [
        (False, (), [10, 11, 2], FinishReason.STOP),
        (True, (), [10, 11, 2, 10, 11], FinishReason.LENGTH),
        (True, (11,), [10, 11], FinishReason.STOP),
        (False, (77,), [10, 11, 2], FinishReason.STOP),
    ],
)
def test_stopping(
    make_rig: type[Rig], ignore_eos: bool, stop_ids: tuple[int, ...], tokens: list[int], reason: FinishReason
) -> None:
    rig = make_rig(eos_ids=frozenset({2}), say=[10, 11, 2])
    request = rig.add([5], max_tokens=5, ignore_eos=ignore_eos, stop_token_ids=stop_ids)
    rig.drain()
    assert request.output == tokens
    assert request.finish_reason is reason


def test_aborting_anywhere_gives_everything_back(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=6, block_tokens=4, max_num_seqs=2)
    requests = [rig.add(range(base, base + 7), max_tokens=12, name=str(base)) for base in (0, 50, 100)]
    while not requests[1].num_preemptions:
        rig.step()
    assert [request.status for request in requests] == [Status.RUNNING, Status.PREEMPTED, Status.WAITING]
    for request in requests:
        rig.scheduler.finish(request, FinishReason.ABORT)
        rig.scheduler.finish(request, FinishReason.STOP)
        rig.scheduler.check_integrity()
        assert request.finish_reason is FinishReason.ABORT
    assert not rig.scheduler.has_work
    assert not rig.step()


def test_a_runner_that_answers_another_batch_is_an_error(make_rig: type[Rig]) -> None:
    rig = make_rig()
    rig.add([1, 2])
    batch = rig.scheduler.schedule()
    assert batch is not None
    with pytest.raises(EngineError, match="answered 0 of 1"):
        rig.scheduler.settle(batch, StepResult([], Seconds(0.0), Seconds(0.0)))
    with pytest.raises(EngineError, match="against the batch"):
        rig.scheduler.settle(batch, StepResult([None], Seconds(0.0), Seconds(0.0)))


def test_sessions_in_turn_below_capacity_keep_their_cache(make_rig: type[Rig]) -> None:
    # Eight conversations in round robin use under half of the pool: from the second turn on, all history must hit.
    rig = make_rig(num_blocks=300, block_tokens=4, max_num_batched_tokens=64)
    histories = [[1000 * session + token for token in range(20)] for session in range(8)]
    hit = asked = 0
    for turn in range(6):
        for history in histories:
            request = rig.add(history, max_tokens=5)
            rig.drain()
            if turn:
                hit, asked = hit + request.cached_tokens, asked + len(request.prompt)
            history += [*request.output, 7, 8, 9]
    assert hit / asked > 0.75
    assert rig.cache.pool.evictions == 0


WORK = st.lists(
    st.tuples(
        st.integers(0, 3),  # which shared prefix
        st.integers(0, 24),  # how much of it
        st.integers(1, 12),  # own tokens
        st.integers(1, 16),  # answer
        st.integers(0, 5),  # steps before the next arrival
        st.integers(0, 9),  # 0: aborted at the next arrival
    ),
    max_size=14,
)


@settings(max_examples=120, deadline=None)
@given(
    work=WORK,
    num_blocks=st.integers(4, 40),
    block_tokens=st.integers(1, 8),
    max_num_seqs=st.integers(1, 6),
    extra_budget=st.integers(0, 20),
    prefix_caching=st.booleans(),
)
def test_random_workloads_drain_and_lose_nothing(
    make_rig: type[Rig],
    work: list[tuple[int, int, int, int, int, int]],
    num_blocks: int,
    block_tokens: int,
    max_num_seqs: int,
    extra_budget: int,
    prefix_caching: bool,
) -> None:
    # What must hold at every step is checked by the rig and by the fake runner, which verifies every KV slot read.
    rig = make_rig(
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + extra_budget,
        prefix_caching=prefix_caching,
    )
    accepted: list[Request] = []
    for number, (prefix, shared, own, answer, steps, fate) in enumerate(work):
        prompt = [*range(prefix * 100, prefix * 100 + shared), *range(1000 * number, 1000 * number + own)]
        try:
            accepted.append(rig.add(prompt, answer, name=f"n{number}"))
        except PromptTooLongError:
            assert len(prompt) + answer - 1 > num_blocks * block_tokens
        for _ in range(steps):
            rig.step()
        if accepted and fate == 0:
            rig.scheduler.finish(accepted[-1], FinishReason.ABORT)
            rig.scheduler.check_integrity()
    rig.drain()
    for request in accepted:
        assert request.finish_reason is not None
        assert len(request.token_times) == len(request.output)
        if request.finish_reason is FinishReason.LENGTH:
            assert len(request.output) == request.params.max_tokens
    counters = rig.scheduler.counters
    assert sum(counters.prompt_by_source.values()) == counters.prompt_tokens
    assert counters.output_tokens == sum(len(request.output) for request in accepted)
    assert all(value >= 0 for value in counters.prompt_by_source.values())


def test_requests_of_one_arrival_time_keep_their_order(make_rig: type[Rig]) -> None:
    rig = make_rig(max_num_seqs=1)
    params = SamplingParams(max_tokens=1)
    for number in range(4):
        rig.scheduler.add(Request(str(number), (number,), params, Seconds(0.0)))
    rig.drain()
    assert [batch.items[0].request.id for batch in rig.batches] == ["0", "1", "2", "3"]

"""How likely a prompt was is told whole and the same, however it is cut, cached or interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import EngineError, RequestError
from energyopt.core.records import FinishReason
from energyopt.core.units import Bytes, Seconds
from engine.answers import score
from engine.batch import CacheShape, StepResult
from engine.fake import FakeRunner, FakeTokenizer
from engine.fake_kv import prefix_digest
from engine.front import EngineFront
from engine.kv.layout import RecurrentState, SlidingWindow
from engine.request import Request, SamplingParams, TokenLogprobs

VOCAB = 8
GROUPS = {"full": (), "window": (SlidingWindow(4, 9),), "state": (RecurrentState(4),)}


def expected(prompt: list[int], alternatives: int) -> list[TokenLogprobs]:
    """The fake model's random logits after each prefix, by the definition of a softmax."""
    digest, found = 0, []
    for token, following in pairwise(prompt):
        digest = prefix_digest(digest, token)
        row = 3 * np.random.default_rng(digest).standard_normal(VOCAB, dtype=np.float32).astype(np.float64)
        logprobs = row - np.log(np.exp(row).sum())
        top = np.argsort(-logprobs)[:alternatives]
        found.append(TokenLogprobs(float(logprobs[following]), tuple((int(t), float(logprobs[t])) for t in top)))
    return found


def near(found: list[TokenLogprobs], wanted: list[TokenLogprobs]) -> bool:
    def flat(scores: list[TokenLogprobs]) -> list[float]:
        return [number for one in scores for number in (one.chosen, *(value for pair in one.top for value in pair))]

    return flat(found) == pytest.approx(flat(wanted), abs=1e-5)


JOBS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
        st.integers(0, 8),
        st.sampled_from((None, 0, 2)),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, deadline=None)
@given(JOBS, st.integers(13, 40), st.integers(3, 32), st.sampled_from(sorted(GROUPS)))
def test_scores_are_those_of_the_prompt_read_at_once(
    make_rig: Callable[..., Any], jobs: list[Any], num_blocks: int, budget: int, kind: str
) -> None:
    rig = make_rig(
        num_blocks=num_blocks, max_num_seqs=3, max_num_batched_tokens=budget, random_vocab=VOCAB, groups=GROUPS[kind]
    )
    requests: list[Request] = []
    for _ in range(2):  # the second time the cache knows every prompt
        for prompt, most, wanted in jobs:
            params = SamplingParams(max_tokens=most if wanted is not None else most + 1, prompt_logprobs=wanted)
            requests.append(Request(f"r{len(requests)}", tuple(prompt), params, Seconds(float(len(requests)))))
            rig.scheduler.add(requests[-1])
        rig.drain()
    for request in requests:
        wanted = request.params.prompt_logprobs
        assert request.finish_reason is FinishReason.LENGTH
        assert len(request.output) == len(request.token_times) == request.params.max_tokens
        assert near(request.scores, [] if wanted is None else expected(list(request.prompt), wanted))
        assert wanted is None or request.cached_tokens == 0
    assert max(sum(item.scored for item in batch.items) for batch in rig.batches) <= rig.runner.max_scored_tokens


def test_a_prompt_is_read_in_steps_of_what_may_be_scored_and_others_go_on(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(max_num_batched_tokens=32)
    other = rig.add([1, 2], max_tokens=6)
    request = Request("r", tuple(range(40)), SamplingParams(max_tokens=1, prompt_logprobs=0), Seconds(1.0))
    rig.scheduler.add(request)
    rig.drain()
    chunks = [[item.count for item in batch.items if item.request is request] for batch in rig.batches]
    assert chunks[:3] == [[16], [16], [8]]
    assert len(other.output) == 6
    assert len(rig.batches) == 6


def test_a_preempted_prompt_is_not_scored_twice(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(num_blocks=14, block_tokens=4, max_num_seqs=2, max_num_batched_tokens=2, random_vocab=VOCAB)
    rig.add(range(8), max_tokens=30, ignore_eos=True)
    prompt = [number % VOCAB for number in range(40)]
    request = Request("r", tuple(prompt), SamplingParams(max_tokens=0, prompt_logprobs=1), Seconds(1.0))
    rig.scheduler.add(request)
    rig.drain()
    assert request.num_preemptions > 0
    assert sum(item.scored for batch in rig.batches for item in batch.items) == len(prompt) - 1
    assert near(request.scores, expected(prompt, 1))


def test_a_runner_that_leaves_scores_out_ends_the_engine(make_rig: Callable[..., Any]) -> None:
    rig = make_rig()
    rig.scheduler.add(Request("r", (1, 2, 3), SamplingParams(prompt_logprobs=0), Seconds(0.0)))
    batch = rig.scheduler.schedule()
    with pytest.raises(EngineError, match="scored 0 of 2 prompt tokens of request 'r'"):
        rig.scheduler.settle(batch, StepResult([None], Seconds(0.0), Seconds(0.0)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(0, 20))
def test_a_score_is_the_logarithm_of_a_softmax(seed: int, rows: int, alternatives: int) -> None:
    logits = 9 * torch.randn(rows, 11, generator=torch.Generator().manual_seed(seed))
    tokens = [seed % 11] * rows
    wanted = torch.log_softmax(logits.double(), dim=-1)
    for row, found in zip(wanted, score(logits, tokens, alternatives), strict=True):
        assert found.chosen == pytest.approx(float(row[tokens[0]]), abs=1e-4)
        assert len(found.top) == min(alternatives, 11)
        assert [value for _, value in found.top] == pytest.approx(
            row.sort(descending=True).values.tolist()[:alternatives], abs=1e-4
        )
        assert all(float(row[token]) == pytest.approx(value, abs=1e-4) for token, value in found.top)


async def _ask(front: EngineFront, params: SamplingParams) -> list[Any]:
    return [output async for output in front.generate([97, 98, 99], params, request_id="r")]


@pytest.mark.parametrize("most", [0, 3])
def test_scores_come_once_with_the_first_output(most: int) -> None:
    config, clock = EngineConfig(model="fake"), MonotonicClock()
    front = EngineFront(config, FakeRunner(), FakeTokenizer(), max_model_len=64, clock=clock)
    try:
        outputs = asyncio.run(_ask(front, SamplingParams(max_tokens=most, prompt_logprobs=0)))
    finally:
        front.close()
    assert [len(output.prompt_logprobs) for output in outputs] == [2, *[0] * (most - 1)]
    assert [len(output.token_ids) for output in outputs] == ([1] * most or [0])
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert outputs[-1].record.output_tokens == most
    assert front.stats().output_tokens == most


def test_an_engine_that_scores_nothing_says_so() -> None:
    class Plain:
        cache, devices = CacheShape(8, 4, Bytes(1)), ("fake-0",)

        def close(self) -> None:
            """Nothing is held."""

    config, clock = EngineConfig(model="fake"), MonotonicClock()
    front = EngineFront(config, Plain(), FakeTokenizer(), max_model_len=16, clock=clock)  # type: ignore[arg-type]
    try:
        with pytest.raises(RequestError, match="does not tell log-probabilities of a prompt"):
            asyncio.run(_ask(front, SamplingParams(prompt_logprobs=1)))
    finally:
        front.close()

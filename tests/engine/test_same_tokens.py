"""Promise: however requests are scheduled and cached, each gets the tokens it would get alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fake import LOWERCASE
from engine.fake_kv import prefix_digest

if TYPE_CHECKING:
    from tests.engine.conftest import Rig


def alone(prompt: Sequence[int], count: int) -> list[int]:
    """The fake model's greedy answer, computed without engine, blocks or cache."""
    tokens = list(prompt)
    digest = 0
    for token in tokens:
        digest = prefix_digest(digest, token)
    for _ in range(count):
        tokens.append(LOWERCASE[digest % len(LOWERCASE)])
        digest = prefix_digest(digest, tokens[-1])
    return tokens[len(prompt) :]


PROMPTS = [[*range(24), *range(100 * n, 100 * n + 3 * n + 1)] for n in range(8)]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize(("num_blocks", "budget"), [(400, 200), (400, 9), (80, 200), (80, 8), (56, 33)])
def test_same_tokens(
    make_rig: type[Rig], prefix_caching: bool, block_tokens: int, num_blocks: int, budget: int
) -> None:
    rig = make_rig(
        num_blocks=-(-num_blocks // block_tokens) + 1,
        block_tokens=block_tokens,
        max_num_batched_tokens=budget,
        prefix_caching=prefix_caching,
    )
    requests = [rig.add(prompt, max_tokens=10) for prompt in PROMPTS]
    rig.drain()
    assert [request.output for request in requests] == [alone(prompt, 10) for prompt in PROMPTS]
    hits = sum(request.cached_tokens for request in requests)
    assert hits == 0 or prefix_caching


def test_the_matrix_above_does_preempt_and_does_hit(make_rig: type[Rig]) -> None:
    rig = make_rig(num_blocks=20, block_tokens=4, max_num_batched_tokens=33)
    requests = [rig.add(prompt, max_tokens=16) for prompt in PROMPTS]
    rig.drain()
    assert rig.scheduler.counters.preemptions > 0
    assert sum(request.cached_tokens for request in requests) > 0
    assert [request.output for request in requests] == [alone(prompt, 16) for prompt in PROMPTS]


@settings(max_examples=100, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=10),
    block_tokens=st.integers(1, 5),
    num_blocks=st.integers(30, 40),
    budget=st.integers(8, 40),
    prefix_caching=st.booleans(),
)
def test_same_tokens_on_random_prompts(
    make_rig: type[Rig],
    prompts: list[list[int]],
    block_tokens: int,
    num_blocks: int,
    budget: int,
    prefix_caching: bool,
) -> None:
    rig = make_rig(
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        max_num_batched_tokens=budget,
        prefix_caching=prefix_caching,
    )
    requests = [rig.add(prompt, max_tokens=9, name=str(number)) for number, prompt in enumerate(prompts)]
    rig.drain()
    assert [request.output for request in requests] == [alone(prompt, 9) for prompt in prompts]


def test_many_prompts_under_eviction_pressure(make_rig: type[Rig]) -> None:
    # A soak: a pool of 48 blocks, a few shared prefixes, a thousand requests.
    rig = make_rig(num_blocks=48, block_tokens=4, max_num_seqs=6, max_num_batched_tokens=48)
    prompts = [[*range(number % 7, number % 7 + 3 * (number % 5)), number, number % 11] for number in range(1000)]
    requests = [rig.add(prompt, max_tokens=1 + number % 6, name=str(number)) for number, prompt in enumerate(prompts)]
    rig.drain()
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.output == alone(prompt, request.params.max_tokens)
    assert rig.cache.pool.evictions > 0

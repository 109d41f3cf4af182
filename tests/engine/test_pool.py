"""Where layers lie in a pool: nothing overlaps, everything fits, blocks of all groups have equal bytes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import UnsupportedModelError
from engine.kv.layout import FullAttention, RecurrentState, SlidingWindow
from engine.model.step import Keeps, Kept, StateKeeps
from engine.mover import TorchMover
from engine.pool import plan_pool

FULL, LOCAL = Keeps((2, 2, 8)), Keeps((2, 2, 8), window=9)
STATE = StateKeeps(((4, 8, 8), (3, 40)), "gated_delta")
LAYERS = st.lists(st.sampled_from([FULL, LOCAL, STATE]), min_size=1, max_size=14).filter(
    lambda layers: any(isinstance(one, Keeps) for one in layers)
)


def test_one_kind_of_layer_is_one_group_that_nobody_need_be_told_of() -> None:
    plan = plan_pool([FULL] * 3, 16, torch.bfloat16)
    assert plan.plain
    assert plan.shape(7).groups == ()
    assert plan.block_bytes == 3 * 16 * 32 * 2
    assert plan.places == ((0, 0), (0, 1), (0, 2))


def test_windows_form_groups_as_large_as_the_others() -> None:
    plan = plan_pool([LOCAL, LOCAL, FULL, LOCAL, LOCAL, FULL, LOCAL], 4, torch.float32)
    assert [type(group) for group in plan.groups] == [FullAttention, SlidingWindow, SlidingWindow, SlidingWindow]
    assert [group.layers for group in plan.groups] == [(2, 5), (0, 1), (3, 4), (6,)]
    assert plan.slabs == 2


def test_a_block_is_long_enough_for_a_state() -> None:
    plan = plan_pool([FULL, STATE, STATE], 4, torch.bfloat16)
    assert [type(group) for group in plan.groups] == [FullAttention, RecurrentState, RecurrentState]
    assert plan.block_tokens == 24  # 64 bytes a token; a state of 376 floats is 1504
    assert plan.block_tokens % 4 == 0
    assert {group.block_tokens for group in plan.groups} == {24}


def test_tokens_of_unequal_size_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"\[64, 128\] bytes a token"):
        plan_pool([Keeps((2, 1, 8)), Keeps((2, 2, 8))], 4, torch.float32)


@settings(max_examples=30, deadline=None)
@given(
    layers=LAYERS, block_tokens=st.sampled_from([1, 3, 4, 16]), dtype=st.sampled_from([torch.float32, torch.float16])
)
def test_layers_of_a_group_never_share_a_byte(layers: list[Kept], block_tokens: int, dtype: torch.dtype) -> None:
    plan = plan_pool(layers, block_tokens, dtype)
    assert plan.block_tokens % block_tokens == 0
    assert sorted(layer for group in plan.groups for layer in group.layers) == list(range(len(layers)))
    pool = torch.zeros((plan.slabs, 3, plan.slab_bytes), dtype=torch.uint8)
    views = plan.views(pool)
    for group in range(len(plan.groups)):
        pool.zero_()
        used = 0
        for (of, _), view in zip(plan.places, views, strict=True):
            if of != group:
                continue
            for part in view:
                assert not part[1].any()
                part[1] = 1
                used += math.prod(part.shape[1:]) * part.element_size()
        assert not pool[:, [0, 2]].any(), "another block was written"
        assert used <= plan.block_bytes


def test_a_block_of_a_hybrid_moves_whole() -> None:
    """Keys, states and inputs of a convolution: what a mover takes out and puts elsewhere is all that layers see."""
    plan = plan_pool([FULL, STATE, LOCAL, STATE], 4, torch.float32)
    pool = torch.zeros((plan.slabs, 4, plan.slab_bytes), dtype=torch.uint8)
    views = plan.views(pool)
    for number, view in enumerate(views):
        for part in view:
            part[1] = torch.arange(part[1].numel(), dtype=torch.float32).view(part[1].shape) + number
    mover = TorchMover(pool, "layout")
    assert mover.block_bytes == plan.block_bytes
    memory = mover.allocate(mover.block_bytes)
    mover.read([1], [memory])
    mover.write([3], [memory])
    assert all(torch.equal(part[3], part[1]) for view in views for part in view)
    assert all(part[1].any() and not part[2].any() for view in views for part in view)

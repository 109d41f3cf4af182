from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.moe import combine, grouped_gemm, token_block
from kernels.moe_routing import plan_groups, route
from kernels.ops import Scoring
from kernels.twins import moe as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])


@BOTH
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 1, 1), (5, 8, 2), (9, 60, 6), (2, 256, 8)])
def test_routes_like_the_twin(
    rows: int, experts: int, top_k: int, scoring: Scoring, dtype: torch.dtype, draw: Draw, assert_near: Near
) -> None:
    logits, bias = draw(rows, experts, dtype=dtype), draw(experts) if scoring == "sigmoid" else None
    for renormalize in (True, False):
        weights, ids = route(logits, top_k, scoring, bias, renormalize=renormalize)
        expected, expected_ids = plain.route(logits, top_k, scoring, bias, renormalize=renormalize)
        assert torch.equal(ids, expected_ids)
        assert_near(weights, expected)


def test_equal_experts_go_by_number() -> None:
    assert route(torch.zeros(1, 5), 3)[1].tolist() == [[0, 1, 2]]


def test_refuses_more_choices_than_experts() -> None:
    with pytest.raises(ValueError, match="5 of 4 experts"):
        route(torch.zeros(1, 4), 5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 40), experts=st.integers(1, 12), block=st.sampled_from([1, 16, 32]), seed=st.integers(0, 999)
)
def test_groups_hold_every_pair_once_and_one_expert_a_tile(rows: int, experts: int, block: int, seed: int) -> None:
    ids = torch.randint(0, experts, (rows, 2), generator=torch.Generator().manual_seed(seed))
    groups = plan_groups(ids, experts, block)
    placed = groups.pairs[groups.pairs < groups.count]
    assert sorted(placed.tolist()) == list(range(2 * rows))
    flat = ids.flatten()
    for tile, expert in zip(groups.pairs.view(-1, block), groups.experts.tolist(), strict=True):
        owners = set(flat[tile[tile < groups.count].long()].tolist())
        assert owners == ({expert} if expert >= 0 else set())


@BOTH
@pytest.mark.parametrize(
    ("rows", "experts", "top_k", "inputs", "outputs"), [(1, 8, 2, 64, 48), (9, 3, 2, 70, 33), (24, 5, 4, 96, 80)]
)
def test_a_whole_layer_equals_the_twin(
    rows: int, experts: int, top_k: int, inputs: int, outputs: int, dtype: torch.dtype, draw: Draw, assert_near: Near
) -> None:
    x, up, down = (
        draw(*s, dtype=dtype) for s in ((rows, inputs), (experts, outputs, inputs), (experts, inputs, outputs))
    )
    gates, ids = route(draw(rows, experts), top_k)
    groups = plan_groups(ids, experts, token_block(x, top_k, experts))
    hidden = grouped_gemm(x, up, groups, top_k)
    assert_near(hidden, plain.grouped_gemm(x, up, ids, top_k))
    out = grouped_gemm(hidden, down, groups, 1)
    assert_near(out, plain.grouped_gemm(hidden, down, ids, 1))
    assert_near(combine(out, gates), plain.combine(out, gates))


def test_refuses_inputs_of_another_width(draw: Draw) -> None:
    groups = plan_groups(torch.zeros(2, 2, dtype=torch.int32), 3, 16)
    with pytest.raises(ValueError, match="4 pairs of 64 columns"):
        grouped_gemm(draw(2, 63), draw(3, 8, 64), groups, 2)
    with pytest.raises(ValueError, match="3 results"):
        combine(draw(3, 8), draw(2, 2))

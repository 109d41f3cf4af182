from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.merge_states import merge_states
from kernels.twins import merge_states as plain
from kernels.twins.paged_attention import attend

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("parts", "rows", "heads", "width"), [(1, 1, 1, 64), (3, 5, 2, 80), (7, 2, 3, 576)])
def test_equals_the_twin(
    dtype: torch.dtype, parts: int, rows: int, heads: int, width: int, draw: Draw, assert_near: Near
) -> None:
    outs, lses = draw(parts, rows, heads, width, dtype=dtype), 30 * draw(parts, rows, heads)
    out, lse = merge_states(outs, lses)
    expected, expected_lse = plain.merge_states(outs, lses)
    assert_near(out, expected)
    assert_near(lse, expected_lse)


@pytest.mark.parametrize("mark", [-torch.inf, torch.nan])
def test_an_empty_part_weighs_nothing_whatever_it_holds(mark: float, draw: Draw) -> None:
    outs, lses = draw(3, 4, 2, 64), draw(3, 4, 2)
    lses[1], outs[1] = mark, torch.nan
    out, lse = merge_states(outs, lses)
    expected, expected_lse = merge_states(outs[::2], lses[::2])
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)


def test_nothing_but_empty_parts_gives_zero(draw: Draw) -> None:
    out, lse = merge_states(torch.full((2, 3, 1, 64), torch.nan), torch.full((2, 3, 1), -torch.inf))
    assert torch.equal(out, torch.zeros(3, 1, 64))
    assert torch.equal(lse, torch.full((3, 1), -torch.inf))


def test_takes_transposed_parts(draw: Draw, assert_near: Near) -> None:
    outs, lses = draw(4, 3, 2, 64).transpose(0, 1), draw(2, 4, 3).permute(2, 1, 0)
    assert_near(merge_states(outs, lses)[0], plain.merge_states(outs, lses)[0])


def test_refuses_log_sum_exps_of_another_shape(draw: Draw) -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) do not fit"):
        merge_states(draw(2, 3, 1, 64), draw(2, 3))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, 40), max_size=5),
    seed=st.integers(0, 1 << 16),
    loudness=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_keys_may_be_cut_anywhere(cuts: list[int], seed: int, loudness: float, assert_near: Near) -> None:
    generator = torch.Generator().manual_seed(seed)
    query = loudness * torch.randn(1, 2, 16, generator=generator)
    keys, values = torch.randn(2, 40, 2, 16, generator=generator)
    whole, whole_lse = attend(query, keys, values, 0.25)
    bounds = [0, *sorted(cuts), 40]
    parts = [
        attend(query, keys[a:b], values[a:b], 0.25)
        if b > a
        else (torch.full((1, 2, 16), torch.nan), torch.full((1, 2), -torch.inf))
        for a, b in itertools.pairwise(bounds)
    ]
    out, lse = merge_states(torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]))
    assert_near(out, whole)
    assert_near(lse, whole_lse)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(5)), at=st.integers(1, 4), seed=st.integers(0, 1 << 16))
def test_order_and_nesting_do_not_matter(order: list[int], at: int, seed: int, assert_near: Near) -> None:
    generator = torch.Generator().manual_seed(seed)
    outs, lses = torch.randn(5, 2, 1, 16, generator=generator), 9 * torch.randn(5, 2, 1, generator=generator)
    whole, whole_lse = merge_states(outs, lses)
    left, right = merge_states(outs[order[:at]], lses[order[:at]]), merge_states(outs[order[at:]], lses[order[at:]])
    out, lse = merge_states(torch.stack((left[0], right[0])), torch.stack((left[1], right[1])))
    assert_near(out, whole)
    assert_near(lse, whole_lse)

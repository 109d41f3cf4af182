from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.kv_copy import copy_blocks
from kernels.platform import arch_named
from kernels.twins import kv_copy as plain

Draw = Callable[..., torch.Tensor]
LAYOUTS = {"token first": (0, 1, 2, 3, 4), "head first": (0, 2, 3, 1, 4), "sides apart": (2, 0, 1, 3, 4)}


def in_layout(pool: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same pool, lying in memory in ``order``."""
    back = [order.index(axis) for axis in range(5)]
    return pool.permute(order).contiguous().permute(back)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("source_layout", LAYOUTS)
@pytest.mark.parametrize("target_layout", LAYOUTS)
def test_copies_between_layouts(source_layout: str, target_layout: str, dtype: torch.dtype, draw: Draw) -> None:
    source = in_layout((9 * draw(5, 16, 2, 3, 80)).to(dtype), LAYOUTS[source_layout])
    target = in_layout(torch.full((7, 16, 2, 3, 80), 9).to(dtype), LAYOUTS[target_layout])
    expected = target.clone()
    ids = torch.tensor([4, 0, -1, 2, 1]), torch.tensor([6, 1, 2, -1, 0])
    copy_blocks(source, target, *ids)
    plain.copy_blocks(source, expected, *ids)
    assert torch.equal(target, expected)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)))
def test_there_and_back_changes_nothing(order: list[int]) -> None:
    source = torch.arange(6 * 4 * 2 * 1 * 8).view(6, 4, 2, 1, 8)
    away, back = torch.zeros_like(source), torch.zeros_like(source)
    here = torch.arange(6)
    copy_blocks(source, away, here, torch.tensor(order))
    copy_blocks(away, back, torch.tensor(order), here)
    assert torch.equal(back, source)


def test_long_lists_are_cut_into_launches_on_rocm(monkeypatch: pytest.MonkeyPatch, draw: Draw) -> None:
    monkeypatch.setattr("kernels.launch.copies_per_launch", lambda arch: 2 if arch.is_amd else 100)
    source, target, ids = draw(5, 4, 2, 1, 8), torch.zeros(5, 4, 2, 1, 8), torch.arange(5)
    copy_blocks(source, target, ids, ids, arch=arch_named("gfx942"))
    assert torch.equal(source, target)


def test_refuses_blocks_of_different_shape(draw: Draw) -> None:
    with pytest.raises(ValueError, match="cannot be copied pairwise"):
        copy_blocks(draw(2, 4, 2, 1, 8), draw(2, 8, 2, 1, 8), torch.arange(2), torch.arange(2))
    with pytest.raises(ValueError, match="neighbours"):
        copy_blocks(draw(2, 4, 2, 8, 3).transpose(3, 4), draw(2, 4, 2, 3, 8), torch.arange(2), torch.arange(2))

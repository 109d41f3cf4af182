from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels need triton")

from engine.mover import TorchMover, blocks_as_cells
from kernels.kv_copy import copy_blocks
from kernels.platform import arch_named
from kernels.twins import kv_copy as plain

Draw = Callable[..., torch.Tensor]
LAYOUTS = {"token first": (0, 1, 2, 3, 4), "head first": (0, 2, 3, 1, 4), "sides apart": (2, 0, 1, 3, 4)}


def in_layout(pool: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same pool, lying in memory in ``order``."""
    back = [order.index(axis) for axis in range(5)]
    return pool.permute(order).contiguous().permute(back)


@pytest.mark.parametrize(
    ("source_layout", "target_layout", "dtype"),
    [
        *((source, target, torch.int8) for source in LAYOUTS for target in LAYOUTS),
        ("token first", "sides apart", torch.float16),
        ("head first", "token first", torch.float32),
    ],
)
def test_copies_between_layouts(source_layout: str, target_layout: str, dtype: torch.dtype, draw: Draw) -> None:
    source = in_layout((9 * draw(5, 4, 2, 3, 80)).to(dtype), LAYOUTS[source_layout])
    target = in_layout(torch.full((7, 4, 2, 3, 80), 9).to(dtype), LAYOUTS[target_layout])
    expected = target.clone()
    ids = torch.tensor([4, 0, -1, 2, 1]), torch.tensor([6, 1, 2, -1, 0])
    copy_blocks(source, target, *ids)
    plain.copy_blocks(source, expected, *ids)
    assert torch.equal(target, expected)


@pytest.mark.parametrize(
    ("layers", "slab", "cell"), [(3, 48, torch.int64), (2, 24, torch.int32), (2, 12, torch.int16), (1, 6, torch.uint8)]
)
def test_a_mover_that_copies_with_the_kernel_moves_the_same_bytes(
    layers: int, slab: int, cell: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of one pool and into another, more blocks than the stage holds, as the mover without it."""
    monkeypatch.setattr("engine.mover._STAGE_BYTES", 2 * layers * slab)
    pool = torch.randint(0, 256, (layers, 6, slab), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    cells = blocks_as_cells(pool)
    assert cells is not None
    assert cells.dtype == cell
    slots, places = [4, 0, 2, 5, 1], [0, 3, 1, 5, 2]
    moved = []
    for copy in (copy_blocks, None):
        mover, target = TorchMover(pool, "layout", copy), torch.zeros_like(pool)
        memory = mover.allocate(len(slots) * mover.block_bytes)
        views = [memory[i * mover.block_bytes : (i + 1) * mover.block_bytes] for i in range(len(slots))]
        mover.read(slots, views)
        TorchMover(target, "layout", copy).write(places, views)
        moved.append((bytes(memory), target))
    assert moved[0][0] == moved[1][0]
    assert torch.equal(moved[0][1], moved[1][1])
    assert torch.equal(moved[0][1][:, places], pool[:, slots])


def test_slabs_of_odd_size_are_moved_without_the_kernel() -> None:
    pool = torch.arange(2 * 3 * 5, dtype=torch.uint8).view(2, 3, 5)
    assert blocks_as_cells(pool) is None
    mover = TorchMover(pool, "layout", copy_blocks)
    view = mover.allocate(mover.block_bytes)
    mover.read([1], [view])
    assert bytes(view) == pool[:, 1].contiguous().numpy().tobytes()


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
    with pytest.raises(ValueError, match=r"Blocks of \(4, 2, 1, 8\) cannot be copied over \(8, 2, 1, 8\)"):
        copy_blocks(draw(2, 4, 2, 1, 8), draw(2, 8, 2, 1, 8), torch.arange(2), torch.arange(2))
    with pytest.raises(ValueError, match="2 sources and 1 targets are no pairs of blocks"):
        copy_blocks(draw(2, 4, 2, 1, 8), draw(2, 4, 2, 1, 8), torch.arange(2), torch.arange(1))
    with pytest.raises(ValueError, match="neighbours"):
        copy_blocks(draw(2, 4, 2, 8, 3).transpose(3, 4), draw(2, 4, 2, 3, 8), torch.arange(2), torch.arange(2))

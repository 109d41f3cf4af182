"""The delta rule by chunks equals the rule token by token, whatever lies end to end and however strong decays are."""

from __future__ import annotations

import pytest
import torch

from kernels.fused_delta import CHUNK, gated_delta
from kernels.sequences import sequences
from kernels.twins.gated_delta import gated_delta as plain

KEY_HEADS, HEADS, KEY, VALUE = 2, 4, 8, 6


@pytest.mark.parametrize("strength", [0.1, 3.0, 60.0])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize(
    ("counts", "offsets", "block_tokens"),
    [([1], [5], 0), ([CHUNK + 9, 1, 70, 2, 1], [0, 3, 7, 1, 0], 0), ([CHUNK + 9, 1, 70, 1], [0, 15, 7, 3], 16)],
)
def test_equal_to_one_by_one(
    counts: list[int], offsets: list[int], block_tokens: int, by_column: bool, strength: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = sum(counts)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k = (torch.nn.functional.normalize(random(rows, KEY_HEADS, KEY), dim=-1) for _ in range(2))
    decay = -strength * random(rows, HEADS, KEY).abs() if by_column else -strength * random(rows, HEADS).abs()
    beta, v = random(rows, HEADS).sigmoid(), random(rows, HEADS, VALUE)
    slots = [number * 2 + 1 for number in range(len(counts))]
    batch = sequences(counts, slots, offsets, block_tokens)
    mine = random(2 * len(counts) + 1, HEADS, KEY, VALUE)
    theirs = mine.clone()
    found, marks = gated_delta(q, k, v, decay, beta, mine, batch, KEY**-0.5)
    wanted, wanted_marks = plain(q, k, v, decay, beta, theirs, batch, KEY**-0.5)
    assert torch.allclose(found, wanted, atol=2e-6)
    assert torch.allclose(mine, theirs, atol=2e-6)
    assert torch.allclose(marks, wanted_marks, atol=2e-6)
    assert len(marks) == batch.boundaries


def test_no_row_is_no_work() -> None:
    states = torch.ones(1, HEADS, KEY, VALUE)
    empty = torch.empty(0, HEADS, KEY)
    nothing = gated_delta(empty, empty, empty, empty, empty[..., 0], states, sequences([], [], []), 1.0)
    assert nothing[0].shape == (0, HEADS, KEY)
    assert bool((states == 1).all())

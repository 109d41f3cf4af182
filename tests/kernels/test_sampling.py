from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.sampling import Filters, sample
from kernels.twins import sampling as plain

Draw = Callable[..., torch.Tensor]


def filters(
    rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 1
) -> Filters:  # fmt: skip
    return Filters(
        torch.full((rows,), temperature), torch.full((rows,), top_k).int(), torch.full((rows,), top_p),
        torch.full((rows,), min_p), torch.full((rows,), seed).long(), torch.arange(rows).int(),
    )  # fmt: skip


MIXED = Filters(
    torch.tensor([0.0, 0.7, 1.0, 1.5, 1.0, 0.1, 9.0, 1.0]), torch.tensor([0, 1, 5, 5000, 7, 0, 50, 2]).int(),
    torch.tensor([1.0, 0.9, 0.5, 0.01, 1.0, 0.0, 0.99, 0.3]),
    torch.tensor([0.0, 0.0, 0.1, 0.0, 0.2, 0.0, 0.5, 1.0]),
    torch.tensor([0, 1, -5, 1 << 40, 7, 8, 9, -(1 << 62)]), torch.arange(8).int() * 1000,
)  # fmt: skip
ALL, FEW = list(range(8)), [0, 6]
"""Rows of it; interpreting one takes a second per 4096 tokens."""


@pytest.mark.parametrize(
    ("vocabulary", "dtype", "rows"),
    [
        (1, torch.float16, FEW), (2, torch.float32, FEW), (300, torch.float32, ALL), (300, torch.float16, FEW),
        (4099, torch.float16, [6]),
    ],
)  # fmt: skip
def test_draws_what_the_twin_draws(vocabulary: int, dtype: torch.dtype, rows: list[int], draw: Draw) -> None:
    logits = (2 * draw(len(rows), vocabulary)).to(dtype)
    if vocabulary > 2:
        logits[:, 1] = -torch.inf
    mixed = Filters(*(getattr(MIXED, field.name)[rows] for field in fields(Filters)))
    assert torch.equal(sample(logits, mixed), plain.sample(logits, mixed))


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0]])
    assert sample(logits, filters(1, temperature=0.0)).tolist() == [1]


def test_a_tiny_temperature_takes_the_likeliest() -> None:
    """One over it is infinite, and that times the likeliest token's gap of 0 would be no number."""
    logits = torch.tensor([[-5.0, 3.0, 2.9, -torch.inf, 1.0]]).expand(3, 5)
    options = filters(3, 1e-45, top_k=3, top_p=0.9, min_p=0.1)
    options.temperature[1:], options.top_k[1:], options.top_p[1] = torch.tensor([1e-38, 1e-30]), 0, 1.0
    assert sample(logits, options).tolist() == plain.sample(logits, options).tolist() == [1, 1, 1]


def test_seed_and_step_alone_decide_whatever_the_batch(draw: Draw) -> None:
    line = draw(1, 500).expand(6, 500)
    drawn = sample(line, filters(6))
    assert len(set(drawn.tolist())) > 1
    alone = filters(1)
    alone.step[0] = 4
    assert sample(line[:1], alone).item() == drawn[4].item()
    assert not torch.equal(sample(line, filters(6, seed=2)), drawn)


def test_frequencies_are_those_of_the_filtered_distribution() -> None:
    """On the twin, which draws what the kernel draws: interpreting hundreds of rows takes minutes."""
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.07, 0.03])
    rows = 400
    drawn = Counter(plain.sample(probabilities.log().expand(rows, 5), filters(rows, top_p=0.85)).tolist())
    assert set(drawn) == {0, 1, 2}
    expected = (probabilities[:3] / 0.9 * rows).tolist()
    chi_square = sum((drawn[token] - count) ** 2 / count for token, count in enumerate(expected))
    assert chi_square < 13.8  # two degrees of freedom: one in a thousand


@pytest.mark.parametrize(
    ("options", "allowed"),
    [({"top_k": 2}, {0, 1}), ({"min_p": 0.4}, {0, 1, 2}), ({"top_k": 1}, {0}), ({"min_p": 1.0}, {0})],
)
def test_filters_leave_no_other_token(options: dict[str, Any], allowed: set[int]) -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.07, 0.03]).log().expand(6, 5)
    assert set(sample(logits, filters(6, **options)).tolist()) <= allowed


def test_philox_gives_the_published_words() -> None:
    """Known answers of Random123: Philox-4x32-10 with everything zero, and with everything one."""
    assert plain.philox(0, torch.zeros(1), 0).item() == 0x6627E8D5

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.cases.decode_step import DecodeStep, Shape
from kernels.cases.work import Maker
from kernels.platform import INTERPRETER
from kernels.twins import paged_attention, rms_norm, rope, swiglu

Near = Callable[[torch.Tensor, torch.Tensor], None]
TINY = Shape(layers=2, width=64, inner=96, heads=4, kv_heads=2, head_dim=32, vocabulary=50, block_tokens=16)


def plain_logits(step: DecodeStep) -> torch.Tensor:
    """The same step written with the twins, on pages of its own."""
    shape, hidden = step.shape, step.embedding[step.tokens]
    residual = torch.zeros_like(hidden)
    for layer in step.layers:
        pages = layer.pages.clone()
        hidden, residual = rms_norm.add_rms_norm(hidden, residual, layer.norm, 1e-5)
        heads = (hidden @ layer.qkv.T).view(len(hidden), -1, shape.head_dim)
        first, last = shape.heads, shape.heads + shape.kv_heads
        turned = rope.rope_into_pages(
            heads[:, :first], heads[:, first:last], heads[:, last:], step.positions, step.cos, step.sin,
            pages[:, :, 0], pages[:, :, 1], step.slots,
        )  # fmt: skip
        out, _ = paged_attention.paged_decode(
            turned, pages[:, :, 0], pages[:, :, 1], step.table, step.lengths, shape.head_dim**-0.5
        )
        hidden, residual = rms_norm.add_rms_norm(out.flatten(1) @ layer.out.T, residual, layer.second_norm, 1e-5)
        hidden = swiglu.swiglu(hidden @ layer.gate_up.T) @ layer.down.T
    return rms_norm.rms_norm(hidden + residual, step.norm, 1e-5) @ step.head.T


def test_a_step_equals_its_plain_form_and_draws_valid_tokens(assert_near: Near) -> None:
    maker = Maker(torch.device("cpu"), torch.float32, INTERPRETER, torch.Generator().manual_seed(2))
    step = DecodeStep(maker, TINY, batch=2, context=21)
    expected = plain_logits(step)
    assert_near(step.run(), expected)
    assert ((step.tokens >= 0) & (step.tokens < TINY.vocabulary)).all()


def test_the_floor_counts_every_weight_and_every_cached_key_once() -> None:
    step = DecodeStep(Maker(torch.device("cpu"), torch.float32, INTERPRETER), TINY, batch=2, context=21)
    weights = 50 * 64 + 2 * (64 * (4 + 2 * 2) * 32 + 64 * 4 * 32 + 64 * 2 * 96 + 96 * 64)
    assert step.least_bytes == 4 * (weights + 2 * 21 * 2 * 2 * 2 * 32)

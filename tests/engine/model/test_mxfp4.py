"""MXFP4 against the format's definition, bit by bit."""

from __future__ import annotations

import torch

from engine.model.mxfp4 import dequantize_mxfp4


def e2m1(code: int) -> float:
    """Sign, two bits of exponent with bias 1, one bit of mantissa; exponent 0 is subnormal. No infinities, no NaN."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return -magnitude if sign else magnitude


def test_every_code_under_every_usual_scale() -> None:
    """Sixteen codes and their partners in the other half of the byte, scales from 2^-60 to 2^60."""
    scales = torch.arange(67, 188, dtype=torch.uint8)
    blocks = torch.arange(16, dtype=torch.uint8).repeat(len(scales), 1, 1)
    blocks = blocks | blocks.flip(-1) << 4
    got = dequantize_mxfp4(blocks, scales[:, None])
    assert got.shape == (len(scales), 32)
    assert got.dtype == torch.bfloat16
    for line, scale in zip(got.tolist(), scales.tolist(), strict=True):
        wanted = [
            e2m1(code) * 2.0 ** (scale - 127)
            for pair in zip(range(16), reversed(range(16)), strict=True)
            for code in pair
        ]
        assert line == wanted


def test_groups_stand_in_order_and_keep_their_scales() -> None:
    blocks = torch.randint(0, 256, (3, 5, 4, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scales = torch.randint(120, 130, (3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    got = dequantize_mxfp4(blocks, scales)
    assert got.shape == (3, 5, 128)
    byte, exponent = int(blocks[2, 1, 3, 7]), int(scales[2, 1, 3]) - 127
    assert got[2, 1, 3 * 32 + 14] == e2m1(byte & 15) * 2.0**exponent
    assert got[2, 1, 3 * 32 + 15] == e2m1(byte >> 4) * 2.0**exponent

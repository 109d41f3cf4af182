"""Uses of the operators beside attention: norms, gates, quantised products, experts, linear attention, sampling."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .. import (
    gated_delta,
    gated_delta_chunk,
    moe,
    moe_routing,
    quant_matmul,
    quant_weights,
    rms_norm,
    sampling,
    sequences,
    swiglu,
)
from ..platform import Arch
from ..twins import gated_delta as plain_delta
from ..twins import moe as plain_moe
from ..twins import quant_matmul as plain_quant
from ..twins import rms_norm as plain_norm
from ..twins import sampling as plain_sampling
from ..twins import swiglu as plain_swiglu
from .work import Case, Maker, Work, size_of


def _norm(make: Maker, small: bool) -> Work:
    x, residual = (make.normal(9 if small else 8192, 4096) for _ in range(2))
    weight = make.normal(4096)
    return Work(
        lambda x, r, w, arch: rms_norm.add_rms_norm(x, r, w, 1e-5, arch=arch),
        lambda x, r, w: plain_norm.add_rms_norm(x, r, w, 1e-5),
        (x, residual, weight), 4 * size_of(x),
    )  # fmt: skip


def _swiglu(make: Maker, small: bool) -> Work:
    pair = make.normal(9 if small else 8192, 2 * 14336)
    return Work(
        lambda x, arch: (swiglu.swiglu(x, arch=arch),),
        lambda x: (plain_swiglu.swiglu(x),),
        (pair,),
        size_of(pair) * 3 // 2,
    )


def _quant(make: Maker, small: bool, rows: int, bits: int) -> Work:
    """Codes of any value with scales and lows that make of them what a weight usually is."""
    outputs, inputs, rows = (70, 512, min(rows, 40)) if small else (14336, 4096, rows)
    kind, least, width = (torch.uint8, 0, inputs // 2) if bits == 4 else (torch.int8, -128, inputs)
    data = make.whole(least, least + 256, outputs, width, dtype=kind)
    scales = (make.uniform(outputs, inputs // 32) * 2 ** (1 - bits)).half()
    lows = scales * -8 if bits == 4 else None
    weight, x = quant_weights.QuantizedWeight(data, scales, lows, inputs), make.normal(rows, inputs)
    kept = size_of(*(part for part in (data, scales, lows) if part is not None))
    return Work(
        lambda x, w, arch: (quant_matmul.quant_matmul(x, w, arch=arch),),
        lambda x, w: (plain_quant.quant_matmul(x, w),),
        (x, weight), kept + size_of(x) + rows * outputs * x.element_size(), 2 * rows * outputs * inputs,
    )  # fmt: skip


def _route(make: Maker, small: bool) -> Work:
    logits, bias = make.normal(9 if small else 4096, 256), make.normal(256, dtype=torch.float32)
    return Work(
        lambda x, b, arch: moe_routing.route(x, 8, "sigmoid", b), lambda x, b: plain_moe.route(x, 8, "sigmoid", b),
        (logits, bias), size_of(logits),
    )  # fmt: skip


def _experts(make: Maker, small: bool, rows: int) -> Work:
    rows, experts, inputs, outputs = (9, 6, 64, 48) if small else (rows, 128, 2048, 1536)
    x, weights, ids = make.normal(rows, inputs), make.normal(experts, outputs, inputs), make.whole(0, experts, rows, 8)
    gates = make.uniform(rows, 8)

    def op(x: Any, w: Any, ids: Any, gates: Any, arch: Arch) -> Any:
        groups = moe_routing.plan_groups(ids, experts, moe.token_block(x, 8, experts, arch))
        return (moe.combine(moe.grouped_gemm(x, w, groups, 8, arch=arch), gates, arch=arch),)

    def twin(x: Any, w: Any, ids: Any, gates: Any) -> Any:
        return (plain_moe.combine(plain_moe.grouped_gemm(x, w, ids, 8), gates),)

    touched = min(experts, rows * 8) * outputs * inputs * x.element_size()
    return Work(op, twin, (x, weights, ids, gates), touched + size_of(x), 2 * rows * 8 * outputs * inputs)


def _delta(make: Maker, small: bool, vector: bool, chunk: bool) -> Work:
    counts = ([1, 17] if small else [2048] * 4) if chunk else ([1, 2, 1] if small else [1] * 64)
    rows, heads, width = sum(counts), 1 if small else 32, 128
    batch = sequences.sequences(counts, list(range(len(counts))), [5] * len(counts), 16, make.device)
    q, k = (make.normal(rows, heads, width) for _ in range(2))
    k, v = functional.normalize(k, dim=-1), make.normal(rows, heads, width)
    decay = -functional.softplus(make.normal(rows, heads, *([width] if vector else []), dtype=torch.float32))
    beta, states = make.uniform(rows, heads), make.normal(len(counts), heads, width, width, dtype=torch.float32)

    def op(q: Any, k: Any, v: Any, g: Any, b: Any, states: Any, batch: Any, arch: Arch) -> Any:
        if chunk:
            return *gated_delta_chunk.chunk_gated_delta(q, k, v, g, b, states, batch, width**-0.5, arch=arch), states
        return *gated_delta.recurrent_gated_delta(q, k, v, g, b, states, batch, width**-0.5), states

    def twin(q: Any, k: Any, v: Any, g: Any, b: Any, states: Any, batch: Any) -> Any:
        return *plain_delta.gated_delta(q, k, v, g, b, states, batch, width**-0.5), states

    moved = size_of(q, k, v, v, decay, beta) + 2 * size_of(states)
    return Work(op, twin, (q, k, v, decay, beta, states, batch), moved, rows * heads * width * width * 6)


def _sample(make: Maker, small: bool) -> Work:
    rows, tokens = (2, 999) if small else (64, 128_256)
    logits = make.normal(rows, tokens, dtype=torch.float32)
    filters = sampling.Filters(
        make.full(0.8, rows, dtype=torch.float32), make.full(50, rows), make.full(0.9, rows, dtype=torch.float32),
        make.full(0.05, rows, dtype=torch.float32), make.whole(0, 1 << 40, rows, dtype=torch.int64), make.full(3, rows),
    )  # fmt: skip
    return Work(
        lambda x, f, arch: (sampling.sample(x, f, arch=arch),), lambda x, f: (plain_sampling.sample(x, f),),
        (logits, filters), size_of(logits),
    )  # fmt: skip


def _one(x: Any, w: Any, arch: Arch) -> tuple[torch.Tensor]:
    return (rms_norm.rms_norm(x, w, 1e-5, arch=arch),)


def _plain_norm(make: Maker, small: bool) -> Work:
    x, weight = make.normal(9 if small else 8192, 4096), make.normal(4096)
    return Work(_one, lambda x, w: (plain_norm.rms_norm(x, w, 1e-5),), (x, weight), 2 * size_of(x))


_BF16 = (torch.bfloat16,)
CASES = (
    Case("rms_norm", _plain_norm),
    Case("add_rms_norm", _norm),
    Case("swiglu", _swiglu),
    Case("quant_vector_int4", lambda make, small: _quant(make, small, 1, 4)),
    Case("quant_vector_int8", lambda make, small: _quant(make, small, 1, 8), _BF16),
    Case("quant_matmul_int4", lambda make, small: _quant(make, small, 16, 4)),
    Case("quant_matmul_int8", lambda make, small: _quant(make, small, 16, 8), _BF16),
    Case("quant_matmul_int4_wide", lambda make, small: _quant(make, small, 512, 4), _BF16),
    Case("route", _route, _BF16),
    Case("experts", lambda make, small: _experts(make, small, 64)),
    Case("experts_wide", lambda make, small: _experts(make, small, 4096), _BF16),
    Case("delta_recurrent", lambda make, small: _delta(make, small, False, False)),
    Case("kda_recurrent", lambda make, small: _delta(make, small, True, False), _BF16),
    Case("delta_chunk", lambda make, small: _delta(make, small, False, True)),
    Case("kda_chunk", lambda make, small: _delta(make, small, True, True), _BF16),
    Case("sample", _sample, (torch.float32,)),
)

"""The operators as Triton kernels behind the port that models use: ``ops.Ops`` for CUDA and ROCm.

This file only brings arguments into the form that each kernel wants. Products with dense weights stay with torch,
whose vendor libraries are at the limit already.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import linear, moe, moe_routing, rms_norm, rope
from .choices import NOTHING, Choices, Shape
from .gated_delta import recurrent_gated_delta
from .gated_delta_chunk import CHUNK, chunk_gated_delta
from .kv_copy import copy_blocks
from .ops import PLAIN, ExpertWeights, Ops, Style
from .paged_decode import DecodeOptions, mla_decode, paged_decode
from .paged_prefill import latent_prefill, paged_prefill
from .pages import ChunkRows, DecodeRows, Pages
from .platform import name_of
from .quant_linear import make_quantized
from .sampling import Filters, sample
from .sequences import Sequences
from .store_rows import store_rows
from .swiglu import swiglu


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``ops.Ops.rope``: angles come by row, so no positions are needed."""
    return rope.rope(x, None, *_by_row(cos, sin))


def rope_store(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
    pool: torch.Tensor, pages: Pages, start: int = 0,
) -> torch.Tensor:  # fmt: skip
    """``ops.RopeStore`` in one launch."""
    keys, values = (pool, None) if value is None else (pool[:, :, 0], pool[:, :, 1])
    return rope.rope_into_pages(query, key, value, None, *_by_row(cos, sin), keys, values, pages.slots, start=start)


def store_kv(pool: torch.Tensor, kv: torch.Tensor, pages: Pages) -> None:
    """``ops.Ops.store_kv``."""
    store_rows(kv.flatten(1), pool.view(-1, pool[0, 0].numel()), pages.slots)


def _by_row(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each pair's cosine and sine once, as views (rows, pairs): the second halves, where no sine is negated."""
    pairs = cos.shape[-1] // 2
    return cos[:, 0, pairs:], sin[:, 0, pairs:]


class Attends:
    """The operators whose launch may have been measured: attention and norms, each by ``choices``."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def attention(self, query: torch.Tensor, pool: torch.Tensor, pages: Pages, style: Style = PLAIN) -> torch.Tensor:
        """``ops.Attention``: one launch for all one-row spans, one for each run of longer ones."""
        decodes = pages.decode_rows
        if decodes is not None and not pages.chunk_rows:
            return self._decode(query[decodes.rows], pool, decodes, style)
        out = torch.empty_like(query)
        if decodes is not None:
            out[decodes.rows] = self._decode(query[decodes.rows], pool, decodes, style)
        for run in pages.chunk_rows:
            self._prefill(query, pool, run, style, out)
        return out

    def latent_attention(
        self, query: torch.Tensor, pool: torch.Tensor, pages: Pages, latent: int, scale: float
    ) -> torch.Tensor:
        """``ops.LatentAttention``: one launch for all one-row spans, one for each run of longer ones."""
        out = query.new_empty((*query.shape[:2], latent))
        decodes, rope_width = pages.decode_rows, query.shape[2] - latent
        if decodes is not None:
            shape = Shape(query.shape[1], 0, query.shape[2], name_of(query.dtype))
            options = self._decode_options("mla_decode", shape, decodes, pool.shape[1], 0)
            rows = query[decodes.rows]
            out[decodes.rows] = mla_decode(rows, pool, decodes.table, decodes.lengths, scale, rope_width, options)[0]
        for run in pages.chunk_rows:
            latent_prefill(
                query[run.rows], pool, run.table, run.starts, run.lengths, run.max_rows, scale, rope_width,
                out=out[run.rows],
            )  # fmt: skip
        return out

    def _decode(self, query: torch.Tensor, pool: torch.Tensor, decodes: DecodeRows, style: Style) -> torch.Tensor:
        shape = Shape(query.shape[1], pool.shape[3], query.shape[2], name_of(query.dtype), style.window > 0)
        options = self._decode_options("paged_decode", shape, decodes, pool.shape[1], style.window)
        keys, values, scale = pool[:, :, 0], pool[:, :, 1], style.scale_of(query.shape[2])
        return paged_decode(query, keys, values, decodes.table, decodes.lengths, scale, style.sinks, options)[0]

    def _decode_options(
        self, op: str, shape: Shape, decodes: DecodeRows, block_tokens: int, window: int
    ) -> DecodeOptions:
        capacity = decodes.table.shape[1] * block_tokens
        plan = self._choices.find(op, shape, len(decodes.lengths), min(capacity, window or capacity))
        if plan is None:
            return DecodeOptions(window=window)
        return DecodeOptions(window=window, parts=plan.parts or None, tile=plan.attention())

    def _prefill(
        self, query: torch.Tensor, pool: torch.Tensor, run: ChunkRows, style: Style, out: torch.Tensor
    ) -> None:
        """Writes the run's rows of ``out``."""
        keys, values = pool[:, :, 0], pool[:, :, 1]
        shape = Shape(query.shape[1], keys.shape[2], query.shape[2], name_of(query.dtype), style.window > 0)
        plan = self._choices.find("paged_prefill", shape, run.max_rows, run.table.shape[1] * keys.shape[1])
        paged_prefill(
            query[run.rows], keys, values, run.table, run.starts, run.lengths, run.max_rows,
            style.scale_of(query.shape[2]), style.sinks, style.window, out=out[run.rows],
            tile=None if plan is None else plan.attention(),
        )  # fmt: skip

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plan = self._choices.find("add_rms_norm", Shape(1, 1, x.shape[-1], name_of(x.dtype)), len(x), 1)
        return rms_norm.add_rms_norm(x, residual, weight, eps, tile=None if plan is None else plan.tile())


def draw(
    logits: torch.Tensor, temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float],
    min_p: Sequence[float], seeds: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """``ops.Draw``. Parameters cross to the device in two copies."""
    floats = torch.tensor((temperature, top_p, min_p), dtype=torch.float32).to(logits.device)
    whole = torch.tensor((seeds, top_k), dtype=torch.int64).to(logits.device)
    first = torch.zeros(len(seeds), dtype=torch.int32, device=logits.device)
    return sample(logits, Filters(floats[0], whole[1].int(), floats[1], floats[2], whole[0], first))


def make_experts(weights: ExpertWeights, dtype: torch.dtype, device: torch.device) -> StackedExperts:
    """``ops.Ops.make_experts``."""
    return StackedExperts(weights, dtype, device)


class StackedExperts:
    """Satisfies ``ops.Experts``: two grouped products over all experts at once and a weighted sum."""

    def __init__(self, weights: ExpertWeights, dtype: torch.dtype, device: torch.device) -> None:
        self._up, self._down = (w.to(device, dtype).contiguous() for w in (weights.up, weights.down))
        self._up_bias, self._down_bias = (
            None if bias is None else bias.to(device, dtype) for bias in (weights.up_bias, weights.down_bias)
        )
        self._act = weights.act

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        narrow, (experts, top_k) = x.to(self._up.dtype), (len(self._up), ids.shape[1])
        groups = moe_routing.plan_groups(ids, experts, moe.token_block(narrow, top_k, experts))
        inner = moe.grouped_gemm(narrow, self._up, groups, top_k)
        if self._up_bias is not None:
            inner += self._up_bias[ids.flatten()]
        said = moe.grouped_gemm(self._act(inner), self._down, groups, 1)
        if self._down_bias is not None:
            said += self._down_bias[ids.flatten()]
        return moe.combine(said, weights).to(x.dtype)


def delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor,
    states: torch.Tensor, batch: Sequences, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """``ops.Delta``: token by token where every request has one row, else in chunks if blocks allow them."""
    single = len(q) <= len(batch.slots)
    form = recurrent_gated_delta if single or batch.block_tokens % CHUNK else chunk_gated_delta
    q, k, v, decay, beta = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v, decay, beta))
    return form(q, k, v, decay, beta, states, batch, scale)


def triton_ops(choices: Choices = NOTHING) -> Ops:
    """The operators, launched as ``choices`` say where they say something."""
    attends = Attends(choices)
    return Ops(
        "triton",
        make_linear=linear.make_linear,
        rms_norm=rms_norm.rms_norm,
        add_rms_norm=attends.add_rms_norm,
        rope=turn,
        rope_store=rope_store,
        swiglu=swiglu,
        store_kv=store_kv,
        attention=attends.attention,
        latent_attention=attends.latent_attention,
        route=moe_routing.route,
        make_experts=make_experts,
        delta=delta,
        captures=True,
        draw=draw,
        make_quantized=make_quantized,
        copy_blocks=copy_blocks,
    )

"""The port between models and operators: what a layer may ask of a device, and in which form.

A model is written once against ``Ops``; ``dispatch`` says which implementations stand behind it. ``rows`` are the new
tokens of one step, in the order of its spans. Positions enter as ``cos`` and ``sin`` (rows, 1, width), each pair's
value twice and the first half of ``sin`` negated; a ``width`` below that of a head turns only so many of its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from .cpu.blocks import Blocks
from .linear import Linear
from .pages import Pages
from .sequences import Sequences

Scoring = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Style:
    """What bends a layer's attention. ``scale`` None is one over the root of a head's width; a token sees the last
    ``window`` positions, its own included (0: all); ``sinks`` (heads,) add ``exp(sink)`` to the softmax's sum."""

    scale: float | None = None
    window: int = 0
    sinks: torch.Tensor | None = None

    def scale_of(self, width: int) -> float:
        return width**-0.5 if self.scale is None else self.scale


PLAIN = Style()


class Attention(Protocol):
    """Causal attention of ``query`` (rows, heads, head_dim) over the pages of a layer's ``pool`` (blocks, block_tokens,
    2, kv_heads, head_dim), the new tokens included; the same shape comes back."""

    def __call__(
        self, query: torch.Tensor, pool: torch.Tensor, pages: Pages, style: Style = PLAIN, /
    ) -> torch.Tensor: ...


class LatentAttention(Protocol):
    """Absorbed MLA: ``query`` (rows, heads, latent + rope) over a ``pool`` (blocks, block_tokens, 1, latent + rope)
    whose first ``latent`` columns are the values too; (rows, heads, latent) comes back."""

    def __call__(
        self, query: torch.Tensor, pool: torch.Tensor, pages: Pages, latent: int, scale: float, /
    ) -> torch.Tensor: ...


class RopeStore(Protocol):
    """Turn ``query`` (rows, heads, head_dim) and give it back; turn ``key`` (rows, kv_heads, head_dim) and write it
    with ``value`` at the batch's slots of ``pool``. Columns from ``start`` on are turned. ``value`` None: the pool is
    (blocks, block_tokens, kv_heads, head_dim) and holds keys alone (MLA)."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
        pool: torch.Tensor, pages: Pages, start: int = 0, /,
    ) -> torch.Tensor: ...  # fmt: skip


class Route(Protocol):
    """Choose ``top_k`` experts by ``logits`` (rows, experts): weights (rows, top_k) float32 and ids int32, best first.
    ``bias`` (experts,) is added for choosing only; weights add up to one where ``renormalize``."""

    def __call__(
        self, logits: torch.Tensor, top_k: int, scoring: Scoring = "softmax", bias: torch.Tensor | None = None,
        *, renormalize: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip


Experts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``x`` (rows, hidden), weights and ids (rows, top_k) -> the weighted sum (rows, hidden) of what those experts say."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """All experts of a layer: ``up`` (experts, inner', hidden) feeds ``act`` (rows, inner') -> (rows, inner), ``down``
    (experts, hidden, inner) takes its result; biases are (experts, outputs) or None."""

    up: torch.Tensor
    down: torch.Tensor
    act: Callable[[torch.Tensor], torch.Tensor]
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


class Delta(Protocol):
    """The gated delta rule over the rows of ``batch``: see ``kernels.gated_delta`` for formula and shapes."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor,
        states: torch.Tensor, batch: Sequences, scale: float, /,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip


MakeQuantized = Callable[[Blocks, int, torch.Tensor | None, torch.dtype, torch.device], Linear]
CopyBlocks = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""``source`` and ``target`` pools (blocks, block_tokens, 2, kv_heads, head_dim), and the blocks' ids in both."""


class Draw(Protocol):
    """A token for each row of ``logits`` (rows, vocab), as (rows,) int64: temperature (above 0) first, then top-k (0:
    off), top-p (1: off) and min-p (0: off), one of each a row. ``seeds`` alone decide what is drawn."""

    def __call__(
        self, logits: torch.Tensor, temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float],
        min_p: Sequence[float], seeds: Sequence[int], /,
    ) -> torch.Tensor: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ops:
    """The operators of one model on one device. ``add_rms_norm(x, residual, weight, eps)`` gives the norm of the sum
    and the sum, which may be ``residual`` itself, overwritten. ``store_kv(pool, kv, pages)`` writes ``kv`` (rows, ...)
    at the batch's slots of ``pool`` (blocks, block_tokens, ...). ``captures``: a step of one-row spans out of these
    operators asks the device for nothing, so it can be captured as a graph. ``draw`` samples on the device; None: a
    sampler made of torch's sorts and sums does as well there. ``make_quantized(blocks, inputs, bias, dtype, device)``
    is a product whose weights stay in few bits, of whose columns ``inputs`` are real; None: they are widened to
    ``dtype`` first, which gives the same numbers. ``copy_blocks`` as in ``kv_copy``; None: torch's copies."""

    name: str
    make_linear: Callable[[torch.Tensor, torch.Tensor | None, torch.dtype, torch.device], Linear]
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    add_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
    rope: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    rope_store: RopeStore
    swiglu: Callable[[torch.Tensor], torch.Tensor]
    store_kv: Callable[[torch.Tensor, torch.Tensor, Pages], None]
    attention: Attention
    latent_attention: LatentAttention
    route: Route
    make_experts: Callable[[ExpertWeights, torch.dtype, torch.device], Experts]
    delta: Delta
    captures: bool = False
    draw: Draw | None = None
    make_quantized: MakeQuantized | None = None
    copy_blocks: CopyBlocks | None = None

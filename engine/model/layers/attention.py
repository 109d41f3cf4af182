"""Grouped-query attention over paged keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.linear import Linear
from kernels.ops import Style

from ..step import Keeps, Slot, Step, paged
from .loader import Loader
from .split import rows_of, span, split_heads


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The numbers of one attention. ``bias`` is that of query, key and value, ``out_bias`` that of the output.

    ``norm_eps`` is that of the norms over each query and key head (None: there are none), ``norm_shift`` what is added
    to their weights. ``scale`` None is one over the root of ``head_dim``. ``window`` positions are seen (0: all).
    ``sinks``: a learned score of each head without a value. ``gated``: the output is multiplied by a sigmoid that
    stands beside each query head. ``rotary`` chooses the angles.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    out_bias: bool = False
    norm_eps: float | None = None
    norm_shift: float = 0.0
    scale: float | None = None
    window: int = 0
    sinks: bool = False
    gated: bool = False
    rotary: int = 0


class Attention:
    """Each tensor rank computes some of the query heads against their key heads, which it keeps in its own pool."""

    def __init__(self, load: Loader, name: str, spec: AttentionSpec) -> None:
        """``name`` is the prefix of the weights."""
        self._spec, self._ops, self._ranks = spec, load.ops, load.place.tensor
        mine = split_heads(spec.heads, spec.kv_heads, self._ranks)
        self._heads, self._kv_heads = len(mine.query), len(mine.kv)
        self._qkv = self._load_inputs(load, name, mine.query, mine.kv)
        rows, queries = spec.heads * spec.head_dim, rows_of(mine.query, spec.head_dim)
        self._out = load.inputs(name + ".o_proj", spec.hidden, rows, queries, bias=spec.out_bias)
        self._norms = None
        if spec.norm_eps is not None:
            self._norms = tuple(load.norm(f"{name}.{part}_norm", spec.head_dim, spec.norm_shift) for part in ("q", "k"))
        sinks = load.vector(name + ".sinks", (spec.heads,), (span(mine.query),)) if spec.sinks else None
        self._style = Style(spec.scale, spec.window, sinks)

    def _load_inputs(self, load: Loader, name: str, query: range, kv: range) -> Linear:
        spec = self._spec
        wide = spec.head_dim * (2 if spec.gated else 1)
        parts = {
            "q_proj": (spec.heads * wide, rows_of(query, wide)),
            "k_proj": (spec.kv_heads * spec.head_dim, rows_of(kv, spec.head_dim)),
            "v_proj": (spec.kv_heads * spec.head_dim, rows_of(kv, spec.head_dim)),
        }
        return load.outputs(name + ".", parts, spec.hidden, bias=spec.bias)

    @property
    def keeps(self) -> Keeps:
        return Keeps((2, self._kv_heads, self._spec.head_dim), self._spec.window)

    def __call__(self, x: torch.Tensor, step: Step, slot: Slot) -> torch.Tensor:
        """The attention's share of the residual (rows, hidden) of normed ``x``; keys and values go into ``slot``."""
        pool, pages = paged(slot).pool, paged(slot).pages
        query, gate, key, value = self._project(x)
        if self._norms is not None:
            query, key = self._normed(query, self._norms[0]), self._normed(key, self._norms[1])
        query = self._ops.rope_store(query, key, value, *step.angles[self._spec.rotary], pool, pages)
        out = self._ops.attention(query, pool, pages, self._style)
        if gate is not None:
            out = out * torch.sigmoid(gate)
        return self._ranks.all_reduce(self._out(out.reshape(len(x), -1)))

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """Query, the gate beside it, key and value, each (rows, heads, head_dim)."""
        queries = self._heads * (2 if self._spec.gated else 1)
        heads = self._qkv(x).view(len(x), -1, self._spec.head_dim)
        query, key, value = torch.split(heads, [queries, self._kv_heads, self._kv_heads], dim=1)
        if not self._spec.gated:
            return query, None, key, value
        return query[:, 0::2], query[:, 1::2], key, value

    def _normed(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        eps = self._spec.norm_eps or 0.0
        return self._ops.rms_norm(heads.reshape(-1, heads.shape[-1]), weight, eps).view(heads.shape)

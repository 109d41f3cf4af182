"""Grouped-query attention over paged keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..step import Keeps, Step
from .loader import Loader
from .split import rows_of, split_heads


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The numbers of one attention. ``bias`` is that of query, key and value, ``out_bias`` that of the output."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    out_bias: bool = False


class Attention:
    """Each tensor rank computes some of the query heads against their key heads, which it keeps in its own pool."""

    def __init__(self, load: Loader, name: str, spec: AttentionSpec) -> None:
        """``name`` is the prefix of the weights."""
        ranks = load.place.tensor
        mine = split_heads(spec.heads, spec.kv_heads, ranks)
        dim, query_rows, kv_rows = spec.head_dim, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        queries, pairs = rows_of(mine.query, dim), rows_of(mine.kv, dim)
        parts = {"q_proj": (query_rows, queries), "k_proj": (kv_rows, pairs), "v_proj": (kv_rows, pairs)}
        self._qkv = load.outputs(name + ".", parts, spec.hidden, bias=spec.bias)
        self._out = load.inputs(name + ".o_proj", spec.hidden, query_rows, queries, bias=spec.out_bias)
        self._heads, self._kv_heads, self._head_dim = len(mine.query), len(mine.kv), dim
        self._ops, self._ranks = load.ops, ranks

    @property
    def keeps(self) -> Keeps:
        return Keeps((2, self._kv_heads, self._head_dim))

    def __call__(self, x: torch.Tensor, step: Step, pool: torch.Tensor) -> torch.Tensor:
        """The attention's share of the residual (rows, hidden) of normed ``x``; keys and values go into ``pool``."""
        ops, turned = self._ops, self._heads + self._kv_heads
        heads = self._qkv(x).view(-1, turned + self._kv_heads, self._head_dim)
        rotated = ops.rope(heads[:, :turned], *step.angles)
        ops.store_kv(pool, torch.stack((rotated[:, self._heads :], heads[:, turned:]), dim=1), step.pages)
        out = ops.attention(rotated[:, : self._heads], pool, step.pages)
        return self._ranks.all_reduce(self._out(out.reshape(len(x), -1)))

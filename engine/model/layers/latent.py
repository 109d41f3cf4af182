"""Multi-head latent attention (DeepSeek-V2, 2024): what is kept of a token is one short vector that all heads share.

Keys and values of a head are products of that *latent* vector, so the products are moved to where they are few: the
key's into the query, the value's behind the weighted sum. Heads then attend to the latent vectors themselves, and
beside them to a few columns that carry the position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.linear import Linear

from ..step import Keeps, Slot, Step, paged
from .loader import Loader
from .split import rows_of, share, span

_NORM_EPS = 1e-6
"""Of the norms over latent vectors, whatever the model's own is."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """The numbers of one attention.

    A head's query and key have ``nope`` columns without a position and ``rope`` with one; its value has ``value``.
    ``latent`` columns are kept of a token, ``query_latent`` are what queries go through (None: nothing). ``turns``:
    positions are rotary, pairs of neighbours where ``interleaved``; else the ``rope`` columns are shared but not
    turned. ``bias`` is that of the products into latent vectors and of the output.
    """

    hidden: int
    heads: int
    nope: int
    rope: int
    value: int
    latent: int
    query_latent: int | None
    scale: float
    bias: bool = False
    turns: bool = True
    interleaved: bool = True


class LatentAttention:
    """Each tensor rank computes some of the heads; all of them keep the same latent vectors."""

    def __init__(self, load: Loader, name: str, spec: LatentSpec) -> None:
        """``name`` is the prefix of the weights."""
        self._spec, self._ops, self._ranks = spec, load.ops, load.place.tensor
        heads = share(spec.heads, self._ranks)
        self._heads = len(heads)
        self._query_in: Linear | None = None
        self._query_norm: torch.Tensor | None = None
        self._query = self._load_query(load, name, heads)
        width = spec.latent + spec.rope
        self._token = load.make(*self._in_halves(load, f"{name}.kv_a_proj_with_mqa", (width, spec.hidden), spec.latent))
        self._token_norm = load.norm(name + ".kv_a_layernorm", spec.latent)
        rows = spec.nope + spec.value
        shape, part = (spec.heads * rows, spec.latent), (span(rows_of(heads, rows)),)
        both = load.vector(name + ".kv_b_proj.weight", shape, part).view(self._heads, rows, spec.latent)
        self._key_up = both[:, : spec.nope].contiguous()
        self._value_up = both[:, spec.nope :].transpose(1, 2).contiguous()
        inputs = rows_of(heads, spec.value)
        self._out = load.inputs(name + ".o_proj", spec.hidden, spec.heads * spec.value, inputs, bias=spec.bias)

    def _load_query(self, load: Loader, name: str, heads: range) -> Linear:
        spec = self._spec
        width, inputs, part = spec.nope + spec.rope, spec.hidden, "q_proj"
        if spec.query_latent is not None:
            every = {"q_a_proj": (spec.query_latent, range(spec.query_latent))}
            self._query_in = load.outputs(name + ".", every, spec.hidden, bias=spec.bias)
            self._query_norm = load.norm(name + ".q_a_layernorm", spec.query_latent)
            inputs, part = spec.query_latent, "q_b_proj"
        weight = load.raw(f"{name}.{part}.weight", (spec.heads * width, inputs), (span(rows_of(heads, width)),))
        by_head = weight.view(len(heads), width, inputs)
        turned = by_head[:, spec.nope :][:, self._order()]
        return load.make(torch.cat((by_head[:, : spec.nope], turned), dim=1).flatten(0, 1), None)

    def _in_halves(
        self, load: Loader, name: str, shape: tuple[int, int], start: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias whose rows from ``start`` on stand in the order in which columns are turned."""
        order = torch.cat((torch.arange(start), start + self._order()))
        bias = load.raw(name + ".bias", shape[:1])[order] if self._spec.bias else None
        return load.raw(name + ".weight", shape)[order], bias

    def _order(self) -> torch.Tensor:
        """The columns with a position so that column ``i`` is turned with ``i + rope / 2``: the same change at queries
        and keys leaves their products as they are."""
        columns = torch.arange(self._spec.rope)
        return torch.cat((columns[0::2], columns[1::2])) if self._spec.interleaved else columns

    @property
    def keeps(self) -> Keeps:
        return Keeps((1, self._spec.latent + self._spec.rope))

    def __call__(self, x: torch.Tensor, step: Step, slot: Slot) -> torch.Tensor:
        """The attention's share of the residual (rows, hidden) of normed ``x``; latent vectors go into ``slot``."""
        spec, ops, place = self._spec, self._ops, paged(slot)
        query = self._project_query(x).view(len(x), self._heads, -1)
        absorbed = torch.einsum("rhn,hnl->rhl", query[..., : spec.nope], self._key_up)
        query = torch.cat((absorbed, query[..., spec.nope :]), dim=-1)
        token = self._token(x)
        latent = ops.rms_norm(token[:, : spec.latent].contiguous(), self._token_norm, _NORM_EPS)
        key = torch.cat((latent, token[:, spec.latent :]), dim=-1).unsqueeze(1)
        if spec.turns:
            query = ops.rope_store(query, key, None, *step.angles[0], place.pool, place.pages, spec.latent)
        else:
            ops.store_kv(place.pool, key, place.pages)
        seen = ops.latent_attention(query, place.pool, place.pages, spec.latent, spec.scale)
        out = torch.einsum("rhl,hlv->rhv", seen, self._value_up)
        return self._ranks.all_reduce(self._out(out.reshape(len(x), -1)))

    def _project_query(self, x: torch.Tensor) -> torch.Tensor:
        if self._query_in is None or self._query_norm is None:
            return self._query(x)
        return self._query(self._ops.rms_norm(self._query_in(x), self._query_norm, _NORM_EPS))

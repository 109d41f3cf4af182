"""Recurrent attention: the gated delta rule behind a short causal convolution.

Gated DeltaNet (Yang et al., 2024) as Qwen3-Next has it, and Kimi Delta Attention (Kimi Linear, 2025), whose decay is
one number per key column. Each keeps two things of a sequence: the last inputs of the convolution and the state of
every head. The rule itself is ``kernels.ops.Delta``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from ..states import StateMoves
from ..step import Slot, StateKeeps, Step, stateful
from .loader import Loader
from .split import rows_of, share, span

_TINY = 1e-6
"""Under the root of a key's length, so that one of zeros stays so."""


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """The numbers of one layer: ``heads`` value heads of ``value`` columns, ``key_heads`` of ``key``, and a
    convolution over ``taps`` positions."""

    hidden: int
    key_heads: int
    heads: int
    key: int
    value: int
    taps: int
    eps: float

    def problems(self) -> str | None:
        """What makes these numbers impossible, or None."""
        if self.heads % self.key_heads:
            return f"{self.heads} value heads are not a multiple of {self.key_heads} key heads"
        return "a convolution over one position has no use" if self.taps < 2 else None


class Recurrence:
    """What both kinds share: convolution, rule and states of this rank's heads."""

    def __init__(
        self, load: Loader, spec: DeltaSpec, taps: torch.Tensor, family: Literal["gated_delta", "kda"]
    ) -> None:
        """``taps`` (channels, width) are the convolution's weights for queries, keys and values, in that order."""
        self._spec, self._ops, self._family = spec, load.ops, family
        self._taps = taps.to(load.device, torch.float32)
        self._key_heads = share(spec.key_heads, load.place.tensor)
        group = spec.heads // spec.key_heads
        self._heads = range(self._key_heads.start * group, self._key_heads.stop * group)

    @property
    def keeps(self) -> StateKeeps:
        kept = (self._spec.taps - 1, self._taps.shape[0])
        return StateKeeps(((len(self._heads), self._spec.key, self._spec.value), kept), self._family)

    def __call__(self, mixed: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, slot: Slot) -> torch.Tensor:
        """Outputs (rows, heads, value) of ``mixed`` (rows, channels); ``decay`` and ``beta`` as the rule takes them."""
        spec, place = self._spec, stateful(slot)
        states, inputs = place.parts
        keys, heads = len(self._key_heads), len(self._heads)
        sizes = [keys * spec.key, keys * spec.key, heads * spec.value]
        query, key, value = torch.split(self._convolve(mixed.float(), inputs, place.moves), sizes, dim=1)
        state = place.moves.load(states)
        out, _ = self._ops.delta(
            unit(query.view(-1, keys, spec.key)), unit(key.view(-1, keys, spec.key)), value.view(-1, heads, spec.value),
            decay, beta, state, place.moves.sequences, spec.key**-0.5,
        )  # fmt: skip
        place.moves.store(states, state)
        return out

    def _convolve(self, mixed: torch.Tensor, inputs: torch.Tensor, moves: StateMoves) -> torch.Tensor:
        rows, last = moves.taps(self._spec.taps)
        line = torch.cat((moves.load(inputs).flatten(0, 1), mixed))
        moves.store(inputs, line[last])
        return functional.silu(torch.einsum("rtc,ct->rc", line[rows], self._taps))


def unit(x: torch.Tensor) -> torch.Tensor:
    """``x`` over its length along the last axis."""
    scaled: torch.Tensor = x * (x.square().sum(-1, keepdim=True) + _TINY).rsqrt()
    return scaled


class GatedDeltaNet:
    """Qwen3-Next's. A key head, its value heads and their gates lie together in the first product, so that each tensor
    rank takes whole key heads."""

    def __init__(self, load: Loader, name: str, spec: DeltaSpec) -> None:
        self._spec, self._ops, self._ranks = spec, load.ops, load.place.tensor
        mine = share(spec.key_heads, self._ranks)
        self._key_heads, self._group = len(mine), spec.heads // spec.key_heads
        heads = range(mine.start * self._group, mine.stop * self._group)
        wide = 2 * spec.key + 2 * self._group * spec.value
        pair = 2 * self._group
        parts = {"in_proj_qkvz": (spec.key_heads * wide, rows_of(mine, wide))}
        self._qkvz = load.outputs(name + ".", parts, spec.hidden)
        self._ba = load.outputs(name + ".", {"in_proj_ba": (spec.key_heads * pair, rows_of(mine, pair))}, spec.hidden)
        self._rate = load.raw(name + ".A_log", (spec.heads,), (span(heads),)).to(load.device).float().exp()
        self._shift = load.raw(name + ".dt_bias", (spec.heads,), (span(heads),)).to(load.device).float()
        self._norm = load.norm(name + ".norm", spec.value)
        keys, values = spec.key_heads * spec.key, spec.heads * spec.value
        shape = (2 * keys + values, 1, spec.taps)
        channels = [
            *rows_of(mine, spec.key),
            *(keys + row for row in rows_of(mine, spec.key)),
            *(2 * keys + row for row in rows_of(heads, spec.value)),
        ]
        taps = load.raw(name + ".conv1d.weight", shape)[channels, 0]
        self._rule = Recurrence(load, spec, taps, "gated_delta")
        self._out = load.inputs(name + ".out_proj", spec.hidden, values, rows_of(heads, spec.value))

    @property
    def keeps(self) -> StateKeeps:
        return self._rule.keeps

    def __call__(self, x: torch.Tensor, _step: Step, slot: Slot) -> torch.Tensor:
        """The share of the residual (rows, hidden) of normed ``x``; states go into ``slot``."""
        spec, rows = self._spec, len(x)
        inner = self._group * spec.value
        by_head = self._qkvz(x).view(rows, self._key_heads, -1)
        query, key, value, gate = torch.split(by_head, [spec.key, spec.key, inner, inner], dim=-1)
        beta, step = self._ba(x).view(rows, self._key_heads, 2, self._group).unbind(2)
        mixed = torch.cat([part.reshape(rows, -1) for part in (query, key, value)], dim=-1)
        decay = -self._rate * functional.softplus(step.reshape(rows, -1).float() + self._shift)
        out = self._rule(mixed, decay, beta.reshape(rows, -1).float().sigmoid(), slot)
        normed = self._ops.rms_norm(out.flatten(0, 1).to(x.dtype), self._norm, spec.eps)
        gated = normed * functional.silu(gate.reshape(-1, spec.value))
        return self._ranks.all_reduce(self._out(gated.view(rows, -1)))


class KimiDelta:
    """Kimi Linear's. Every head has its own key; decay and output gate come through narrow products."""

    def __init__(self, load: Loader, name: str, spec: DeltaSpec) -> None:
        self._spec, self._ops, self._ranks = spec, load.ops, load.place.tensor
        mine = share(spec.heads, self._ranks)
        columns, width = rows_of(mine, spec.key), spec.heads * spec.key
        self._heads = len(mine)
        prefix, narrow = name + ".", range(spec.key)
        self._qkv = load.outputs(prefix, {f"{part}_proj": (width, columns) for part in "qkv"}, spec.hidden)
        self._beta = load.outputs(prefix, {"b_proj": (spec.heads, mine)}, spec.hidden)
        self._into = load.outputs(prefix, dict.fromkeys(("f_a_proj", "g_a_proj"), (spec.key, narrow)), spec.hidden)
        self._fade = load.outputs(prefix, {"f_b_proj": (width, columns)}, spec.key)
        self._gate = load.outputs(prefix, {"g_b_proj": (width, columns)}, spec.key)
        shape, part = (1, 1, spec.heads, 1), (slice(None), slice(None), span(mine))
        self._rate = load.raw(name + ".A_log", shape, part).to(load.device).float().exp().view(-1, 1)
        self._shift = load.raw(name + ".dt_bias", (width,), (span(columns),)).to(load.device).float()
        self._norm = load.norm(name + ".o_norm", spec.value)
        taps = [load.raw(f"{name}.{part}_conv1d.weight", (width, 1, spec.taps), (span(columns),)) for part in "qkv"]
        self._rule = Recurrence(load, spec, torch.cat(taps)[:, 0], "kda")
        self._out = load.inputs(name + ".o_proj", spec.hidden, width, columns)

    @property
    def keeps(self) -> StateKeeps:
        return self._rule.keeps

    def __call__(self, x: torch.Tensor, _step: Step, slot: Slot) -> torch.Tensor:
        """The share of the residual (rows, hidden) of normed ``x``; states go into ``slot``."""
        spec, rows = self._spec, len(x)
        fade, gate = self._into(x).chunk(2, dim=-1)
        slowed = (self._fade(fade).float() + self._shift).view(rows, self._heads, spec.key)
        decay = -self._rate * functional.softplus(slowed)
        out = self._rule(self._qkv(x), decay, self._beta(x).float().sigmoid(), slot)
        normed = self._ops.rms_norm(out.flatten(0, 1).to(x.dtype), self._norm, spec.eps)
        gated = normed.view(rows, -1) * torch.sigmoid(self._gate(gate))
        return self._ranks.all_reduce(self._out(gated))

"""What lies where in a KV pool: one tensor of bytes (slabs, blocks, slab bytes) for all layers of one rank.

Layers that read alike form groups of as many layers as a block has slabs; a group's layer ``i`` has slab ``i`` of every
block that the group is given. So all groups share one pool of blocks of equal bytes, and whoever moves blocks need not
know what is in them. A state has a slab of its own; blocks are made long enough for one token's keys and values to fill
as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from energyopt.core.errors import UnsupportedModelError
from energyopt.core.units import Bytes

from .batch import CacheShape
from .kv.layout import FullAttention, GroupSpec, RecurrentState, SlidingWindow
from .model.step import Kept, StateKeeps

_ALIGN = 16
"""Bytes of which a slab is a multiple, so that any number format fits it."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """``places`` are group and slab of each layer, ``slab_bytes`` what one layer has of one block."""

    keeps: tuple[Kept, ...]
    groups: tuple[GroupSpec, ...]
    places: tuple[tuple[int, int], ...]
    slabs: int
    slab_bytes: int
    dtype: torch.dtype

    @property
    def block_tokens(self) -> int:
        """Of the first group, which has layers that read every position if there are any."""
        return self.groups[0].block_tokens

    @property
    def block_bytes(self) -> Bytes:
        return Bytes(self.slabs * self.slab_bytes)

    @property
    def plain(self) -> bool:
        """Whether there is one group, which reads every position."""
        return len(self.groups) == 1 and isinstance(self.groups[0], FullAttention)

    def shape(self, num_blocks: int) -> CacheShape:
        """The plan as the scheduler sees it, which is told of groups only if they are not the usual one."""
        return CacheShape(num_blocks, self.block_tokens, self.block_bytes, () if self.plain else self.groups)

    def views(self, pool: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        """Each layer's part of ``pool`` (slabs, blocks, slab_bytes) uint8: (blocks, block_tokens, *token), or the parts
        of a state, each (blocks, *part) in float32."""
        found: list[tuple[torch.Tensor, ...]] = []
        for kept, (group, slab) in zip(self.keeps, self.places, strict=True):
            if isinstance(kept, StateKeeps):
                found.append(_state_views(pool[slab].view(torch.float32), kept))
            else:
                tokens = self.groups[group].block_tokens
                found.append((pool[slab].view(self.dtype).view(-1, tokens, *kept.token),))
        return found


def _state_views(slab: torch.Tensor, kept: StateKeeps) -> tuple[torch.Tensor, ...]:
    views, at = [], 0
    for shape in kept.parts:
        views.append(slab[:, at : at + math.prod(shape)].view(-1, *shape))
        at += math.prod(shape)
    return tuple(views)


def plan_pool(keeps: Sequence[Kept], block_tokens: int, dtype: torch.dtype, *, windows: bool = True) -> PoolPlan:
    """The groups of a rank's layers. ``block_tokens`` is what is asked for; hybrids get a multiple of it.

    Without ``windows``, layers that have one keep everything like the others, so that pipeline stages, which share
    their block ids, all have one group.

    Raises UnsupportedModelError for layers whose tokens take different bytes.
    """
    if not windows:
        keeps = [kept if isinstance(kept, StateKeeps) else replace(kept, window=0) for kept in keeps]
    token_bytes = {math.prod(kept.token) * dtype.itemsize for kept in keeps if not isinstance(kept, StateKeeps)}
    state_bytes = max((4 * kept.elements for kept in keeps if isinstance(kept, StateKeeps)), default=0)
    if len(token_bytes) != 1:
        raise UnsupportedModelError(f"Layers that keep {sorted(token_bytes)} bytes a token cannot share a pool.")
    width = token_bytes.pop()
    block_tokens = _long_enough(block_tokens, width, state_bytes)
    kinds = sorted({_kind(kept) for kept in keeps})
    members = {kind: [i for i, kept in enumerate(keeps) if _kind(kept) == kind] for kind in kinds}
    slabs = min(map(len, members.values()))
    groups: list[GroupSpec] = []
    places: dict[int, tuple[int, int]] = {}
    for layers in members.values():
        for start in range(0, len(layers), slabs):
            part = layers[start : start + slabs]
            places.update({layer: (len(groups), slab) for slab, layer in enumerate(part)})
            groups.append(_group(keeps[part[0]], block_tokens, tuple(part)))
    ordered = tuple(places[layer] for layer in range(len(keeps)))
    return PoolPlan(tuple(keeps), tuple(groups), ordered, slabs, block_tokens * width, dtype)


def _long_enough(block_tokens: int, token_bytes: int, state_bytes: int) -> int:
    """The least multiple of ``block_tokens`` that a state fits, and that number formats of any size divide."""
    if not state_bytes:
        return block_tokens
    step = math.lcm(block_tokens * token_bytes, _ALIGN) // token_bytes
    return step * -(-state_bytes // (step * token_bytes))


def _kind(kept: Kept) -> tuple[int, int, tuple[tuple[int, ...], ...]]:
    """What makes layers alike; sorts layers that read everything first, states last."""
    if isinstance(kept, StateKeeps):
        return (2, 0, kept.parts)
    return (int(kept.window > 0), kept.window, (kept.token,))


def _group(kept: Kept, block_tokens: int, layers: tuple[int, ...]) -> GroupSpec:
    if isinstance(kept, StateKeeps):
        return RecurrentState(block_tokens, kept.family, layers)
    return SlidingWindow(block_tokens, kept.window, layers) if kept.window else FullAttention(block_tokens, layers)

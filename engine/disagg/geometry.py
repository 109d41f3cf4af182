"""What a block's bytes are, and how the same block lies over the ranks of engines with other layouts.

The unit of a hand-over is the whole block of the model: layer after layer, token after token, keys then values, head
after head of them. A rank of a tensor-parallel engine holds some of the heads, one of a pipeline some of the layers.
Both are cut out of the whole block here and put together again, so that any two layouts that hold the whole model
between their ranks can hand over, and none needs to know the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energyopt.core.config import ParallelLayout
from energyopt.core.errors import ConfigError

from ..kv.ports import BlockMover

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A whole block: (layers, tokens, 2, heads, head_bytes) bytes."""

    layers: int
    block_tokens: int
    kv_heads: int
    head_bytes: int

    @property
    def block_bytes(self) -> int:
        return self.layers * self.block_tokens * 2 * self.kv_heads * self.head_bytes


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of every block that one rank holds: ``layers`` of all heads in ``heads``."""

    layers: range
    heads: range

    def bytes_of(self, whole: Geometry) -> int:
        return len(self.layers) * whole.block_tokens * 2 * len(self.heads) * whole.head_bytes


def shards_of(whole: Geometry, layout: ParallelLayout) -> tuple[Shard, ...]:
    """The ranks of one replica, stage after stage, by tensor rank within a stage.

    With more tensor ranks than key/value heads, neighbours hold the same head. Raises ConfigError for what cannot be
    handed over: positions that are split over ranks (dcp), and ranks that do not divide heads or layers.
    """
    if layout.dcp > 1:
        raise ConfigError(
            f"A layout with dcp = {layout.dcp} hands nothing over: its ranks hold parts of blocks' positions; "
            "allowed is dcp = 1."
        )
    if layout.pp > whole.layers:
        raise ConfigError(f"pp = {layout.pp} is not allowed: the model has {whole.layers} layers.")
    if whole.kv_heads % layout.tp and layout.tp % whole.kv_heads:
        raise ConfigError(
            f"tp = {layout.tp} cannot hand over {whole.kv_heads} key/value heads: one must divide the other."
        )
    share, copies = max(1, whole.kv_heads // layout.tp), max(1, layout.tp // whole.kv_heads)
    heads = [range(rank // copies * share, rank // copies * share + share) for rank in range(layout.tp)]
    bounds = [stage * whole.layers // layout.pp for stage in range(layout.pp + 1)]
    return tuple(Shard(range(bounds[stage], bounds[stage + 1]), own) for stage in range(layout.pp) for own in heads)


def cut(block: memoryview, whole: Geometry, shard: Shard) -> memoryview:
    """One rank's part of a whole block, contiguous. Raises ConfigError for a block of another size."""
    view = _shaped(block, whole)
    layers, heads = shard.layers, shard.heads
    return np.ascontiguousarray(view[layers.start : layers.stop, :, :, heads.start : heads.stop]).reshape(-1).data


def join(parts: Sequence[memoryview], whole: Geometry, shards: Sequence[Shard], into: memoryview) -> None:
    """A whole block from the parts of all ranks; heads that several ranks hold are taken from the last of them.

    Raises ConfigError if the ranks do not hold the whole block between them.
    """
    covered = np.zeros((whole.layers, whole.kv_heads), dtype=bool)
    target = _shaped(into, whole)
    for part, shard in zip(parts, shards, strict=True):
        own = (slice(shard.layers.start, shard.layers.stop), slice(shard.heads.start, shard.heads.stop))
        shape = (len(shard.layers), whole.block_tokens, 2, len(shard.heads), whole.head_bytes)
        if len(part) != shard.bytes_of(whole):
            raise ConfigError(f"A rank's part has {len(part)} bytes: its share is {shard.bytes_of(whole)}.")
        target[own[0], :, :, own[1]] = np.frombuffer(part, dtype=np.uint8).reshape(shape)
        covered[own] = True
    if not covered.all():
        raise ConfigError("The ranks do not hold the whole block between them.")


class ShardedMover:
    """The blocks of an engine of several ranks as whole blocks. Satisfies ``BlockMover``.

    ``ranks`` move each rank's own part, in the order of ``shards``. ``layout`` names the whole block, so that engines
    of any layouts find that they have the same one. Raises ConfigError if parts and shares differ.
    """

    def __init__(self, layout: str, whole: Geometry, shards: Sequence[Shard], ranks: Sequence[BlockMover]) -> None:
        for shard, rank in zip(shards, ranks, strict=True):
            if rank.block_bytes != shard.bytes_of(whole):
                raise ConfigError(
                    f"A rank's block has {rank.block_bytes} bytes: its share of {whole.block_bytes} is "
                    f"{shard.bytes_of(whole)}."
                )
        self.layout = layout
        self.block_bytes = whole.block_bytes
        self._whole = whole
        self._shards = tuple(shards)
        self._ranks = tuple(ranks)

    def allocate(self, size: int) -> memoryview:
        return self._ranks[0].allocate(size)

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        parts = [[memoryview(bytearray(rank.block_bytes)) for _ in slots] for rank in self._ranks]
        for rank, views in zip(self._ranks, parts, strict=True):
            rank.read(slots, views)
        for number, view in enumerate(into):
            join([views[number] for views in parts], self._whole, self._shards, view)

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        for rank, shard in zip(self._ranks, self._shards, strict=True):
            rank.write(slots, [cut(view, self._whole, shard) for view in source])


def _shaped(block: memoryview, whole: Geometry) -> Bytes:
    if len(block) != whole.block_bytes:
        raise ConfigError(f"A block has {len(block)} bytes: the model's have {whole.block_bytes}.")
    shape = (whole.layers, whole.block_tokens, 2, whole.kv_heads, whole.head_bytes)
    return np.frombuffer(block, dtype=np.uint8).reshape(shape)

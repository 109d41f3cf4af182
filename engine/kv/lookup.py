"""How long a cached prefix is when several groups of layers must all have their part of it.

Each group can say how far it reaches below a limit; the longest prefix that all accept is a fixed point. Nothing here
changes the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .blocks import BlockPool
from .layout import FullAttention, GroupSpec, Layout, RecurrentState

Lower = Mapping[tuple[int, int], str]
"""Blocks that a lower tier has: (group, index of the block) -> name of the tier."""

NOTHING_LOWER: Lower = {}


class Search:
    """One request's hashes against the pool and, with ``lower``, against the tiers below.

    ``hashes`` has one entry per unit of the layout. Positions inside a block are only hit on the device: tiers keep
    whole blocks.
    """

    def __init__(self, layout: Layout, pool: BlockPool, hashes: Sequence[bytes], lower: Lower = NOTHING_LOWER) -> None:
        self._layout = layout
        self._pool = pool
        self._hashes = hashes
        self._lower = lower
        self._partial = layout.partial and not lower
        self._prefixes: dict[int, int] = {}
        self._device: dict[int, list[int]] = {}

    def longest(self, limit: int, drop: int = 0) -> int:
        """The longest prefix, in tokens, up to ``limit``.

        ``drop`` is the distance that speculation wants between a hit and the end of what attention knows. It is taken
        off once, from the attention groups' own answer: taken off each round it would walk every hit to 0.
        """
        everyone = range(len(self._layout.groups))
        if drop:
            readers = [g for g in everyone if not isinstance(self._layout.groups[g], RecurrentState)]
            limit = max(0, self._settle(readers, limit) - drop)
        return self._settle(everyone, limit)

    def attention(self, limit: int) -> int:
        """How far the groups that read everything reach alone; 0 without such a group."""
        full = [g for g, group in enumerate(self._layout.groups) if isinstance(group, FullAttention)]
        return self._settle(full, limit) if full else 0

    def attention_of(self, group: int, limit: int) -> int:
        """How far one group reaches alone."""
        return self._settle((group,), limit)

    def prefix(self, group: int) -> list[int]:
        """The device blocks of the longest unbroken prefix, whatever the other groups have."""
        if group not in self._device:
            self._device[group] = self._pool.find_prefix(self._names(group), group)
        return self._device[group]

    def block(self, group: int, index: int) -> int | None:
        """The device block of a whole block of tokens."""
        return self._pool.find(self._hashes[(index + 1) * self._layout.units_per_block[group] - 1], group)

    def blocks(self, group: int, first: int, end: int) -> list[int | None]:
        """The device blocks of whole blocks of tokens, None where one is not there."""
        find = self._pool.find
        return [find(name, group) for name in self._names(group)[first:end]]

    def tail(self, group: int, position: int) -> int | None:
        """The device block from which a prefix that ends inside a block can be copied."""
        ending = self._pool.find(self._hashes[position // self._layout.unit - 1], group)
        if ending is not None or isinstance(self._layout.groups[group], RecurrentState):
            return ending
        size = self._layout.groups[group].block_tokens
        covers = (position // size + 1) * self._layout.units_per_block[group] <= len(self._hashes)
        return self.block(group, position // size) if covers else None

    def _settle(self, groups: Sequence[int], limit: int) -> int:
        length, before = limit // self._layout.unit * self._layout.unit, -1
        while length != before:
            before = length
            for group in groups:
                length = self._reach(group, length)
        return length

    def _reach(self, group: int, limit: int) -> int:
        """The longest prefix up to ``limit`` that this group can continue from."""
        spec = self._layout.groups[group]
        if isinstance(spec, FullAttention):
            return self._reach_full(group, spec.block_tokens, limit)
        if isinstance(spec, RecurrentState):
            return self._reach_state(group, spec.block_tokens, limit)
        return self._reach_window(group, spec, limit)

    def _reach_full(self, group: int, size: int, limit: int) -> int:
        """From left to right: what a block holds is worth nothing if one before it is gone."""
        end = self._prefix(group) * size
        if limit <= end and not self._partial:
            return limit // size * size
        if limit <= end:
            return limit
        if self._partial:
            for position in range(min(limit, end + size - self._layout.unit), end, -self._layout.unit):
                if self.tail(group, position) is not None:
                    return position
        return end

    def _prefix(self, group: int) -> int:
        """Whole blocks known from the start; counted once per search."""
        if group not in self._prefixes:
            names = self._names(group)
            count = len(self.prefix(group))
            while count < len(names) and (
                (group, count) in self._lower or (self._lower and self._pool.find(names[count], group) is not None)
            ):
                count += 1
            self._prefixes[group] = count
        return self._prefixes[group]

    def _reach_state(self, group: int, size: int, limit: int) -> int:
        """From right to left: one state, at exactly this position."""
        step = self._layout.unit if self._partial else size
        for position in range(limit // step * step, 0, -step):
            if position % size == 0:
                if self._has(group, position // size - 1):
                    return position
            elif self.tail(group, position) is not None:
                return position
        return 0

    def _reach_window(self, group: int, spec: GroupSpec, limit: int) -> int:
        """From right to left: a run of blocks that covers what is still read; each block is looked at once."""
        size, unit = spec.block_tokens, self._layout.unit
        end = limit if self._partial else limit // size * size
        while end > 0:
            first, index = spec.first_read(end), (end - 1) // size
            if first * size >= end:
                return end
            if end % size and self.tail(group, end) is None:
                end -= unit
                continue
            index -= 1 if end % size else 0
            while index >= first and self._has(group, index):
                index -= 1
            if index < first:
                return end
            end = min(end - unit, (index + 1) * size - unit) if self._partial else index * size
        return 0

    def _names(self, group: int) -> Sequence[bytes]:
        """The hash of each whole block of a group."""
        per_block = self._layout.units_per_block[group]
        return self._hashes[per_block - 1 :: per_block] if per_block > 1 else self._hashes

    def _has(self, group: int, index: int) -> bool:
        return (group, index) in self._lower or self.block(group, index) is not None

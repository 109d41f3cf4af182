"""What the cache does when a step has ended: names the blocks that became full, and gives up what is read no more."""

from __future__ import annotations

from collections.abc import Iterable

from ..request import NO_BLOCK, Request
from .blocks import BlockPool
from .inflight import tier_key
from .layout import FullAttention, GroupSpec, RecurrentState
from .ports import Transfer
from .retention import NEVER, Retention, keeps
from .tables import tables_of, thin


class Keeper:
    """Applies the retention policy to one pool. ``offers`` collects, if wanted, what lower tiers should be given.

    The same policy decides both: what is not worth a name here is not worth a copy there.
    """

    def __init__(self, retention: Retention, pool: BlockPool, *, caching: bool, offering: bool) -> None:
        self.offers: list[Transfer] = []
        self._retention = retention
        self._layout = retention.layout
        self._pool = pool
        self._caching = caching
        self._offering = offering
        self._sizes = tuple(group.block_tokens for group in self._layout.groups)
        self._reads_all = all(isinstance(group, FullAttention) for group in self._layout.groups)

    def begin(self, request: Request) -> None:
        """Before the first step of a request whose tables hold a prefix of ``num_computed`` tokens."""
        notes, computed = request.kv, request.num_computed
        notes.boundaries = self._retention.boundaries(len(request.prompt), notes.shared_boundary)
        notes.read_from = [group.first_read(computed) for group in self._layout.groups]
        notes.quiet = self._next_duty(request, computed)

    def advance(self, request: Request, start: int, stop: int) -> None:
        """Positions ``start`` to ``stop`` were computed; ``request.num_computed`` is ``stop`` already."""
        tables = tables_of(request)
        for group, (spec, table) in enumerate(zip(self._layout.groups, tables, strict=True)):
            if self._caching:
                self._name_whole(request, group, spec, table, start, stop)
                if self._layout.partial:
                    self._name_parts(request, group, spec, table, start, stop)
            if not isinstance(spec, FullAttention):
                read = spec.first_read(stop)
                thin(table, request.kv.read_from[group], read, self._pool)
                request.kv.read_from[group] = max(read, request.kv.read_from[group])
        request.kv.quiet = self._next_duty(request, stop)

    def _next_duty(self, request: Request, computed: int) -> int:
        if self._reads_all and not self._caching:
            return NEVER
        if len(self._sizes) == 1:
            duty = (computed // self._sizes[0] + 1) * self._sizes[0]
        else:
            duty = min((computed // size + 1) * size for size in self._sizes)
        if self._layout.partial:
            drop = self._retention.drop
            inside = [e - d for e in request.kv.boundaries for d in {0, drop} if e - d > computed]
            duty = min([duty, *inside])
        return duty

    def _name_whole(
        self, request: Request, group: int, spec: GroupSpec, table: list[int], start: int, stop: int
    ) -> None:
        size, per_block = spec.block_tokens, self._layout.units_per_block[group]
        first, last = start // size, stop // size
        if isinstance(spec, RecurrentState):
            if stop % size:
                return
            first = last - 1
        kept: Iterable[int] = range(first, last)
        if not isinstance(spec, FullAttention):
            interval, drop = self._retention.interval, self._retention.drop
            kept = [index for index in kept if keeps(spec, index, request.kv.boundaries, interval, drop)]
        hashes, register = request.block_hashes, self._pool.register
        for index in kept:
            block, name = table[index], hashes[(index + 1) * per_block - 1]
            register(block, name, group)
            if self._offering and self._pool.find(name, group) == block:
                self.offers.append(Transfer(tier_key(name, group), block))

    def _name_parts(
        self, request: Request, group: int, spec: GroupSpec, table: list[int], start: int, stop: int
    ) -> None:
        """Boundaries inside a block. A state is only there if the chunk ended on it, and must not be overwritten."""
        size = spec.block_tokens
        recurrent = isinstance(spec, RecurrentState)
        for end in request.kv.boundaries:
            for position in {end, end - self._retention.drop}:
                reached = position == stop if recurrent else start < position <= stop
                if not reached or position % size == 0 or table[position // size] == NO_BLOCK:
                    continue
                name = request.block_hashes[position // self._layout.unit - 1]
                self._pool.register_partial(table[position // size], name, group)
                if recurrent:
                    request.kv.covered = stop

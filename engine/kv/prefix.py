"""Finds a request's cached prefix: on the device, and where that ends in the tiers below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..request import NO_BLOCK, Request
from .blocks import DEVICE, BlockPool
from .hashing import DIGEST_BYTES, BlockHasher
from .inflight import InFlight, tier_key
from .layout import FullAttention, GroupSpec
from .lookup import NOTHING_LOWER, Lower, Search
from .ports import LowerTiers
from .retention import Retention


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix of ``tokens`` tokens, split by tier, and the blocks that make it up.

    ``tables`` has a table per group: device blocks (all of them are ``blocks``), and gaps where nothing is read.
    ``incoming`` are (group, index,
    tier) of gaps that a load fills. ``tails`` are (group, block) to copy from where the prefix ends inside a block.
    ``known`` is how far the groups that read everything reach alone. ``later``: a tier has yet to answer, ask again.
    Only valid until the pool changes: admit it or drop it.
    """

    tables: tuple[list[int], ...]
    tokens: int
    by_tier: Mapping[str, int]
    blocks: tuple[int, ...] = ()
    incoming: tuple[tuple[int, int, str], ...] = ()
    tails: tuple[tuple[int, int], ...] = ()
    known: int = 0
    later: bool = False


NO_HIT = PrefixHit((), 0, {})
ASK_LATER = PrefixHit((), 0, {}, later=True)


def name_tokens(hasher: BlockHasher, request: Request) -> None:
    """Hash what the request knows of its tokens and has not hashed yet."""
    known = len(request.block_hashes) * hasher.block_tokens
    whole = request.num_tokens // hasher.block_tokens * hasher.block_tokens
    if whole > known:
        fresh = request.tokens(known, whole) if known or request.output else request.prompt
        hasher.extend(request.block_hashes, fresh)


class _Chosen(dict[tuple[int, int], str]):
    """Blocks of lower tiers that were found worth their load together."""


class PrefixFinder:
    """Looks prefixes up; changes nothing but a request's own notes and the tiers' recency."""

    def __init__(
        self,
        retention: Retention,
        pool: BlockPool,
        hasher: BlockHasher,
        tiers: LowerTiers | None,
        inflight: InFlight | None,
    ) -> None:
        self._layout = retention.layout
        self._drop = retention.drop
        self._pool = pool
        self._hasher = hasher
        self._tiers = tiers
        self._inflight = inflight
        # Where all layers read everything the tiers weigh a load when they are asked for it.
        self._plain = retention.layout.plain
        self._simple = self._plain and tiers is None and not retention.layout.partial and not self._drop
        self._full_first = sorted(
            enumerate(retention.layout.groups), key=lambda item: not isinstance(item[1], FullAttention)
        )

    def find(self, request: Request) -> PrefixHit:
        """The longest cached prefix, at most ``num_tokens - 1``: one token is left for the logits."""
        name_tokens(self._hasher, request)
        limit = request.num_tokens - 1
        if self._simple:
            return self._run_of_blocks(request.block_hashes, limit)
        near = Search(self._layout, self._pool, request.block_hashes)
        reached = near.longest(limit, self._drop)
        if self._tiers is not None and self._inflight is not None and request.kv.tiers:
            lower = self._ask(self._tiers, self._inflight, request, near, reached)
            if lower is None:
                return ASK_LATER
            if lower:
                hit = self._loaded(self._tiers, request, lower, limit, reached)
                if hit is not None:
                    return hit
        return self._hit(near, reached, near.attention(limit), reached, NOTHING_LOWER)

    def _run_of_blocks(self, hashes: Sequence[bytes], limit: int) -> PrefixHit:
        """The hit where all layers read all blocks, a prefix ends with a block, and nothing lies below the device."""
        size = self._layout.unit
        table = self._pool.find_prefix(hashes[: limit // size])
        length = len(table) * size
        return PrefixHit((table,), length, {DEVICE: length}, tuple(table), known=length) if table else NO_HIT

    def _loaded(self, tiers: LowerTiers, request: Request, lower: Lower, limit: int, reached: int) -> PrefixHit | None:
        """The longest prefix beyond ``reached`` that is worth its load, if any: the farthest tier is left out first.

        What was chosen stands while the request waits.
        """
        notes, asked = request.kv, (request.num_tokens, reached)
        while lower:
            far = Search(self._layout, self._pool, request.block_hashes, lower)
            length = far.longest(limit, self._drop)
            if length <= reached:
                return None
            hit = self._hit(far, length, far.attention(limit), reached, lower)
            if self._plain or isinstance(lower, _Chosen):
                return hit
            if tiers.worth([tier for _, _, tier in hit.incoming], length - reached):
                notes.answer = (*asked, _Chosen(lower))
                return hit
            notes.answer = (*asked, self._without_the_last(lower, hit))
            lower = notes.answer[2]
        return None

    def _without_the_last(self, lower: Lower, hit: PrefixHit) -> dict[tuple[int, int], str]:
        """What lies before the blocks at the end of a prefix that attention would load from one tier."""
        sizes = [spec.block_tokens for spec in self._layout.groups]
        full = {group for group, spec in self._full_first if isinstance(spec, FullAttention)}
        read = sorted((index * sizes[group], tier) for group, index, tier in hit.incoming if group in full)
        end = 0
        for start, tier in reversed(read):
            if tier != read[-1][1]:
                break
            end = start
        return {at: tier for at, tier in lower.items() if (at[1] + 1) * sizes[at[0]] <= end}

    def _ask(self, tiers: LowerTiers, inflight: InFlight, request: Request, near: Search, reached: int) -> Lower | None:
        """What the tiers have of the blocks that are not on the device; None: ask later.

        The answer is kept while the request waits. If it grows old nothing breaks: a load that finds a block gone
        says so.
        """
        notes, hashes = request.kv, request.block_hashes
        if not notes.seen:
            notes.seen = True
            for group, per_block in enumerate(self._layout.units_per_block):
                tiers.seen([tier_key(name, group) for name in hashes[per_block - 1 :: per_block]])
        if notes.answer is not None and notes.answer[:2] == (request.num_tokens, reached):
            return notes.answer[2]
        lower: dict[tuple[int, int], str] = {}
        span = request.num_tokens - 1
        for group, spec in self._full_first:
            wanted, keys = self._missing(group, spec, span, near, hashes)
            if wanted and inflight.expects(keys[0][:DIGEST_BYTES], group):
                return None
            full = isinstance(spec, FullAttention)
            if keys:
                found = tiers.find(keys, weigh=self._plain) if full else tiers.locate(keys)
                if found.later:
                    return None
                lower.update({(group, index): tier for index, tier in zip(wanted, found.tiers, strict=False) if tier})
            if full:
                span = min(span, Search(self._layout, self._pool, hashes, lower).attention_of(group, span))
                if span <= reached:
                    lower = {}
                    break
        notes.answer = (request.num_tokens, reached, lower)
        return lower

    def _missing(
        self, group: int, spec: GroupSpec, span: int, near: Search, hashes: Sequence[bytes]
    ) -> tuple[Sequence[int], Sequence[bytes]]:
        """Indices and keys of a group's whole blocks within ``span`` tokens that the tiers are to be asked about."""
        per_block, count = self._layout.units_per_block[group], span // spec.block_tokens
        if isinstance(spec, FullAttention):
            wanted: Sequence[int] = range(len(near.prefix(group)), count)
        else:
            wanted = [index for index, block in enumerate(near.blocks(group, 0, count)) if block is None]
        names = [hashes[(index + 1) * per_block - 1] for index in wanted]
        return wanted, [tier_key(name, group) for name in names] if group else names

    def _hit(self, search: Search, length: int, known: int, near: int, lower: Lower) -> PrefixHit:
        """The tables of a prefix of ``length`` tokens, of which ``near`` are had without a load."""
        if not length:
            return PrefixHit((), 0, {}, known=known) if known else NO_HIT
        tables: list[list[int]] = []
        incoming: list[tuple[int, int, str]] = []
        tails: list[tuple[int, int]] = []
        for group, spec in enumerate(self._layout.groups):
            size = spec.block_tokens
            whole, first = length // size, spec.first_read(length)
            if isinstance(spec, FullAttention) and not lower:
                table = search.prefix(group)[:whole]
            else:
                table = [NO_BLOCK] * whole
                for index, block in enumerate(search.blocks(group, first, whole), first):
                    if block is None:
                        incoming.append((group, index, lower[group, index]))
                    else:
                        table[index] = block
            tables.append(table)
            source = search.tail(group, length) if length % size else None
            if source is not None:
                tails.append((group, source))
        by_tier = self._split(length, near, incoming)
        blocks = tuple(block for table in tables for block in table if block != NO_BLOCK)
        return PrefixHit(tuple(tables), length, by_tier, blocks, tuple(incoming), tuple(tails), known)

    def _split(self, length: int, near: int, incoming: list[tuple[int, int, str]]) -> dict[str, int]:
        """Tokens by tier: up to ``near`` the device's; beyond it by where the attention blocks come from.

        A stretch whose attention blocks are on the device, but which only a loaded state or window makes usable,
        counts for that one's tier.
        """
        if not incoming:
            return {DEVICE: length}
        tokens: Counter[str] = Counter({DEVICE: near} if near else {})
        group = next((g for g, spec in enumerate(self._layout.groups) if isinstance(spec, FullAttention)), 0)
        size, enabling = self._layout.groups[group].block_tokens, incoming[-1][2]
        tiers = {index: tier for of, index, tier in incoming if of == group}
        first, last = near // size, -(-length // size) - 1
        for tier, blocks in Counter([tiers.get(index, enabling) for index in range(first, last + 1)]).items():
            tokens[tier] += blocks * size
        tokens[tiers.get(first, enabling)] -= near - first * size
        tokens[tiers.get(last, enabling)] -= (last + 1) * size - length
        return dict(tokens)

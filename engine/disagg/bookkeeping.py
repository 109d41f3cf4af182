"""Which blocks of the device pool take part in hand-overs, lent or awaited, and for which request.

A block that takes part has a reference of the hand-over's own: whatever happens to the request, nobody is handed the
block before the copy or the lease ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..kv.blocks import DEVICE, BlockPool
from ..kv.inflight import Landed
from ..kv.layout import FullAttention, Layout
from ..kv.ports import TierCounts
from ..kv.prefix import PrefixHit
from ..kv.tables import held, tables_of
from ..request import NO_BLOCK, Request
from .params import Lend, Offer, prompt_digest
from .ports import NOTHING_PULLED, REMOTE, Part, Remote

logger = logging.getLogger(__name__)
_NONE_LANDED = Landed()


@dataclass(slots=True)
class _Pull:
    request: Request | None
    parts: tuple[Part, ...]
    names: tuple[bytes | None, ...]
    findable: bool = True


class HandOvers:
    """The hand-overs of one pool; without a ``remote`` there are none. ``failures`` counts requests whose blocks did
    not come, ``name`` hashes a request's tokens.

    A request that was handed over takes all of its prompt but the last token from the other engine, as far as the
    device does not have it already: what is left to compute is exactly one token.
    """

    def __init__(self, pool: BlockPool, layout: Layout, remote: Remote | None, name: Callable[[Request], None]) -> None:
        self.failures = 0
        self._remote = remote
        self._hash = name
        self._pool = pool
        self._layout = layout
        self._pulls: dict[int, _Pull] = {}
        self._lent: dict[str, list[int]] = {}
        self._refused: list[Request] = []

    @property
    def busy(self) -> bool:
        return bool(self._pulls or self._lent or self._refused)

    def accept(self, request: Request) -> None:
        """A request arrived: keep its offer alive, or let it compute (or end) if the offer is of no use here."""
        offer, remote = request.params.transfer, self._remote
        if not isinstance(offer, Offer) or remote is None:
            return
        problem = self._problem(request, offer) or remote.usable(offer)
        if problem is None:
            remote.hold(offer)
            if len(request.prompt) == 1:  # its one token is computed here in any case
                self.used(request)
        else:
            self._count_failure(request, problem)
            if not remote.recompute:
                self._refused.append(request)

    def hit(self, request: Request) -> PrefixHit | None:
        """Where the prompt's blocks are: on the device, and with the other engine from there on. None: not handed over.

        Only groups that read everything are looked up on the device; the others' few blocks are pulled.
        """
        if self._remote is None or not isinstance(request.params.transfer, Offer):
            return None
        if not request.kv.remote or request.output:
            return None
        self._hash(request)
        limit = len(request.prompt) - 1
        tables: list[list[int]] = []
        incoming: list[tuple[int, int, str]] = []
        near = 0
        for group, spec in enumerate(self._layout.groups):
            size = spec.block_tokens
            table = [NO_BLOCK] * -(-limit // size)
            if isinstance(spec, FullAttention):
                found = self._pool.find_prefix(self._names(request, group), group)[: limit // size]
                table[: len(found)] = found
                near = len(found) * size if group == 0 else min(near, len(found) * size)
            first = next((index for index, block in enumerate(table) if block == NO_BLOCK), len(table))
            incoming += [(group, index, REMOTE) for index in range(max(first, spec.first_read(limit)), len(table))]
            tables.append(table)
        by_tier = {tier: tokens for tier, tokens in ((DEVICE, near), (REMOTE, limit - near)) if tokens}
        blocks = tuple(block for table in tables for block in table if block != NO_BLOCK)
        return PrefixHit(tuple(tables), limit, by_tier, blocks, tuple(incoming))

    def load(self, request: Request, hit: PrefixHit, slots: Sequence[int]) -> None:
        """Begin to fill slots that ``request`` holds."""
        offer, remote = request.params.transfer, self._remote
        assert isinstance(offer, Offer) and remote is not None  # noqa: PT018  ``hit`` answers for no other request
        limit = len(request.prompt) - 1
        parts = tuple(Part(group, index, slot) for (group, index, _), slot in zip(hit.incoming, slots, strict=True))
        self._pool.touch(slots)
        ticket = remote.pull(offer, prompt_digest(request.prompt, limit), parts)
        self._pulls[ticket] = _Pull(request, parts, tuple(self._name(request, part, limit) for part in parts))

    def used(self, request: Request) -> None:
        """The request has its blocks, or ended: its offer is not needed any more."""
        offer = request.params.transfer
        if self._remote is not None and request.kv.remote and isinstance(offer, Offer):
            request.kv.remote = False
            self._remote.drop(offer)

    def abandon(self, request: Request) -> None:
        """Nobody waits for this request's pull any more; its blocks stay with the copy until that ends."""
        for ticket, pull in self._pulls.items():
            if pull.request is request and self._remote is not None:
                pull.request = None
                self._remote.cancel(ticket)

    def forget(self) -> None:
        """What is under way may be used by its own request, but by nobody else."""
        for pull in self._pulls.values():
            pull.findable = False

    def lend(self, request: Request) -> None:
        """A prefill leg ended: its prompt's blocks wait for whoever comes with the offer."""
        if self._remote is None or not isinstance(request.params.transfer, Lend):
            return
        count = len(request.prompt)
        tables = tuple(
            tuple(table[: -(-count // spec.block_tokens)])
            for spec, table in zip(self._layout.groups, tables_of(request), strict=True)
        )
        blocks = [block for table in tables for block in held(table)]
        self._pool.touch(blocks)
        # The taker computes the last token of its prompt; a prompt that was cut by one is the taker's but for that.
        digest = prompt_digest(request.prompt, self._handed(count))
        offer = self._remote.lend(tables, count, digest)
        self._lent[offer.lease] = blocks
        request.kv.offer = offer

    def poll(self) -> Landed:
        """Take note of every pull and lease that ended."""
        if self._remote is None:
            return _NONE_LANDED
        for lease in self._remote.returned():
            self._pool.free(reversed(self._lent.pop(lease)))
        pulled = self._remote.poll()
        if pulled is NOTHING_PULLED and not self._refused:
            return _NONE_LANDED
        loaded = [self._end(ticket, arrived=True) for ticket in pulled.arrived]
        broken = [request for ticket, why in pulled.failed if (request := self._fail(ticket, why)) is not None]
        lost, self._refused = self._refused, []
        if not self._remote.recompute:
            lost, broken = lost + broken, []
        return Landed(tuple(request for request in loaded if request is not None), tuple(broken), tuple(lost))

    def wait(self, seconds: float) -> None:
        """Sleep until a pull ends, at most ``seconds``."""
        if self._remote is not None:
            self._remote.wait(seconds)

    def counts(self) -> tuple[TierCounts, ...]:
        """Blocks pulled and lent, as one tier's counters; empty without other engines. Any thread."""
        return () if self._remote is None else (self._remote.counts(),)

    def close(self) -> None:
        """End pulls and leases; idempotent."""
        if self._remote is not None:
            self._remote.close()

    def references(self) -> Counter[int]:
        """Blocks that hand-overs hold, with multiplicity."""
        counted: Counter[int] = Counter()
        for pull in self._pulls.values():
            counted.update(part.slot for part in pull.parts)
        for blocks in self._lent.values():
            counted.update(blocks)
        return counted

    def _handed(self, count: int) -> int:
        """Tokens of a lent prompt of ``count`` that the taker does not compute; see ``params.lent_prompt``."""
        reads_all = all(isinstance(spec, FullAttention) for spec in self._layout.groups)
        return count - 1 if reads_all else count

    def _problem(self, request: Request, offer: Offer) -> str | None:
        """Why the offer is of no use for this request, or None."""
        limit = len(request.prompt) - 1
        if self._handed(offer.num_tokens) != limit and limit:
            return f"it covers {offer.num_tokens} tokens, the prompt has {limit + 1}"
        if len(offer.tables) != len(self._layout.groups):
            return f"it has {len(offer.tables)} groups of layers, here are {len(self._layout.groups)}"
        for spec, table in zip(self._layout.groups, offer.tables, strict=True):
            wanted = range(spec.first_read(limit), -(-limit // spec.block_tokens))
            if any(index >= len(table) or table[index] == NO_BLOCK for index in wanted):
                return "it lacks blocks of the prompt"
        return None

    def _count_failure(self, request: Request, why: str) -> None:
        self.failures += 1
        request.kv.remote = False
        computes = self._remote is not None and self._remote.recompute
        then = "computing its prompt" if computes else "ending it, as the policy says"
        logger.warning("Request %s was not handed over: %s; %s.", request.id, why, then)

    def _end(self, ticket: int, *, arrived: bool) -> Request | None:
        """Release a pull's blocks, last one first; returns the request that waits for it."""
        pull = self._pulls.pop(ticket)
        for part, name in zip(pull.parts, pull.names, strict=True):
            if arrived and pull.findable and name is not None:
                self._pool.register(part.slot, name, part.group)
        self._pool.free(part.slot for part in reversed(pull.parts))
        if arrived and pull.request is not None:
            self.used(pull.request)
        return pull.request

    def _fail(self, ticket: int, why: str) -> Request | None:
        request = self._end(ticket, arrived=False)
        if request is not None:
            self.used(request)
            self._count_failure(request, f"its blocks did not come ({why})")
        return request

    def _names(self, request: Request, group: int) -> Sequence[bytes]:
        per_block = self._layout.units_per_block[group]
        return request.block_hashes[per_block - 1 :: per_block]

    def _name(self, request: Request, part: Part, limit: int) -> bytes | None:
        """The hash under which a whole block of a prompt can be found; None for the last one, and for windows."""
        spec = self._layout.groups[part.group]
        if not isinstance(spec, FullAttention) or part.index >= limit // spec.block_tokens or not request.block_hashes:
            return None
        return request.block_hashes[(part.index + 1) * self._layout.units_per_block[part.group] - 1]

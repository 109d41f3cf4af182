"""Where a request is given to a worker: names its prompt, asks the caches' indexes, lets the policy choose, books it.

It does no input or output. The proxy calls it for every request, and so does whoever replays a trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from energyopt.core.units import Seconds

from .book import Book, Ticket
from .index import PrefixIndex
from .names import CHUNK_TOKENS, Prompt, Scheme
from .ports import NO_OVERLAP, Choice, Overlap, RouteRequest, RoutingPolicy

MAX_BLOCKS = 1 << 20
"""Blocks remembered of a worker: of 16 tokens each, 16 million tokens, in about 150 MB."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to be routed."""

    prompt: Prompt
    now: Seconds
    session: str | None = None
    output_tokens: int = 0


class Desk:
    """Gives requests to workers by ``policy``.

    What a worker holds comes from its events, once ``feed`` said how it names blocks; until then, and for prompts
    whose tokens are not known, from the prompts that were sent there.  ``chunks_held`` bounds how many parts of text
    are remembered of a worker: about what its cache has room for, in units of 64 tokens.
    """

    def __init__(
        self, policy: RoutingPolicy, book: Book, *, max_blocks: int = MAX_BLOCKS, chunks_held: int = MAX_BLOCKS
    ) -> None:
        self._policy = policy
        self.book = book
        self.blocks = PrefixIndex(max_blocks)
        self.chunks = PrefixIndex(chunks_held)
        self._schemes: dict[str, Scheme] = {}

    @property
    def fed(self) -> Collection[str]:
        """Workers whose events come in."""
        return self._schemes.keys()

    def feed(self, worker: str, scheme: Scheme) -> None:
        """From now on ``blocks`` follows the events of ``worker``, beginning with nothing."""
        self._schemes[worker] = scheme
        self.blocks.cleared(worker)

    def unfeed(self, worker: str) -> None:
        """Its events ended: what is known of it goes stale, so it is forgotten."""
        self._schemes.pop(worker, None)
        self.blocks.cleared(worker)

    def forget(self, worker: str) -> None:
        """A worker that restarted or left holds nothing."""
        self.unfeed(worker)
        self.chunks.cleared(worker)

    def give(self, asked: Asked, workers: Sequence[str]) -> tuple[Choice, Ticket]:
        """Choose one of ``workers`` (at least one) and book the request there."""
        request = RouteRequest(
            asked.prompt.tokens,
            asked.now,
            asked.session,
            asked.prompt.key,
            asked.output_tokens,
            dict(self._overlaps(asked.prompt, workers)),
        )
        choice = self._policy.choose(request, self.book.loads(workers, asked.now))
        self.chunks.stored(choice.worker, asked.prompt.chunks())
        cached = min(choice.cached_tokens, asked.prompt.tokens)
        return choice, self.book.sent(choice.worker, asked.prompt.tokens, cached, asked.now)

    def _overlaps(self, prompt: Prompt, workers: Iterable[str]) -> Iterable[tuple[str, Overlap]]:
        for worker in workers:
            overlap = self._overlap(prompt, worker)
            if overlap.exact or overlap.by_tier:
                yield worker, overlap

    def _overlap(self, prompt: Prompt, worker: str) -> Overlap:
        scheme = self._schemes.get(worker)
        names = prompt.blocks(scheme) if scheme is not None else None
        if scheme is not None and names is not None:
            held = self.blocks.overlap(worker, names)
            return Overlap({tier: count * scheme.block_tokens for tier, count in held.items()}, exact=True)
        chunks = self.chunks.overlap(worker, prompt.chunks())
        if not chunks:
            return NO_OVERLAP
        return Overlap({tier: count * CHUNK_TOKENS for tier, count in chunks.items()})

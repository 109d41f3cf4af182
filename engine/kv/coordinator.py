"""Between scheduler and block pool: which blocks a request gets, and which of its tokens need no computing.

It knows requests, token counts and block ids. Where a prefix was found is said by tier ("device" is this pool), so
that further tiers and further groups of layers add entries instead of changing the shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..batch import CacheShape
from ..request import Request
from .blocks import BlockPool
from .hashing import BlockHasher

DEVICE = "device"


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix: ``blocks`` in order, ``tokens`` they cover, and the same tokens split by tier.

    Only valid until the pool changes: admit it or drop it.
    """

    blocks: tuple[int, ...]
    tokens: int
    by_tier: Mapping[str, int]


NO_HIT = PrefixHit((), 0, {})


class KvCoordinator:
    """Looks up, allocates, registers and frees the blocks of requests.

    Invariant between steps: a request's ``block_ids`` cover at least ``num_computed`` tokens, and a block that can be
    found by its hash was computed by a step that has ended.
    """

    def __init__(self, shape: CacheShape, *, prefix_caching: bool = True, salt: bytes = b"") -> None:
        self.shape = shape
        self.pool = BlockPool(shape.num_blocks)
        self.prefix_caching = prefix_caching
        self.hit_tokens: Counter[str] = Counter()
        """Tokens taken from the cache by tier, re-admissions after preemption included."""
        self._hasher = BlockHasher(shape.block_tokens, salt=salt)

    @property
    def capacity(self) -> int:
        """Tokens that one request alone can have in the pool."""
        return self.shape.num_blocks * self.shape.block_tokens

    def lookup(self, request: Request) -> PrefixHit:
        """The longest cached prefix in whole blocks, at most ``num_tokens - 1``: one token is left for the logits."""
        if not self.prefix_caching:
            return NO_HIT
        self._extend_hashes(request)
        blocks: list[int] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.shape.block_tokens]:
            block = self.pool.find(block_hash)
            if block is None:
                break
            blocks.append(block)
        tokens = len(blocks) * self.shape.block_tokens
        return PrefixHit(tuple(blocks), tokens, {DEVICE: tokens}) if blocks else NO_HIT

    def can_admit(self, request: Request, hit: PrefixHit, *, spare: int) -> bool:
        """Whether all known tokens of ``request`` fit with ``spare`` blocks left over for others to grow into."""
        revived = sum(1 for block in hit.blocks if self.pool.is_idle(block))
        fresh = self._blocks_for(request.num_tokens) - len(hit.blocks)
        return fresh + revived + spare <= self.pool.num_available

    def admit(self, request: Request, hit: PrefixHit) -> None:
        """Give the cached blocks to a request that has none."""
        self.pool.touch(hit.blocks)
        request.block_ids = list(hit.blocks)
        request.num_computed = hit.tokens
        self.hit_tokens.update(hit.by_tier)

    def room(self, request: Request) -> int:
        """Tokens that the request's own blocks and the idle ones can still take."""
        blocks = len(request.block_ids) + self.pool.num_available
        return blocks * self.shape.block_tokens - request.num_computed

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Let the request's blocks cover ``num_tokens``; False, and nothing changed, if the pool has too few."""
        missing = self._blocks_for(num_tokens) - len(request.block_ids)
        if missing <= 0:
            return True
        if missing > self.pool.num_available:
            return False
        request.block_ids += self.pool.allocate(missing)
        return True

    def commit(self, request: Request, num_computed: int) -> None:
        """A step computed the request up to ``num_computed``: blocks that became full can be found from now on."""
        size = self.shape.block_tokens
        first, last = request.num_computed // size, num_computed // size
        request.num_computed = num_computed
        if not self.prefix_caching or first == last:
            return
        self._extend_hashes(request)
        for index in range(first, last):
            self.pool.register(request.block_ids[index], request.block_hashes[index])

    def free(self, request: Request) -> None:
        """Take all blocks away, tail first; full ones stay cached until they are reused."""
        self.pool.free(reversed(request.block_ids))
        request.block_ids = []
        request.num_computed = 0

    def reset(self) -> int:
        """Forget every cached prefix; returns the number of blocks forgotten. Running requests keep theirs."""
        return self.pool.reset()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise EngineError unless the pool's references are exactly the blocks of ``requests``. O(pool)."""
        references: Counter[int] = Counter()
        for request in requests:
            references.update(request.block_ids)
        self.pool.check_integrity(references)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.shape.block_tokens)

    def _extend_hashes(self, request: Request) -> None:
        known = len(request.block_hashes) * self.shape.block_tokens
        if request.num_tokens - known >= self.shape.block_tokens:
            fresh = request.tokens(known, request.num_tokens) if known or request.output else request.prompt
            self._hasher.extend(request.block_hashes, fresh)

"""Between scheduler and block pool: which blocks a request gets, and which of its tokens need no computing.

It knows requests, token counts and block ids. Where a prefix was found is said by tier: "device" is this pool, the
names of others come from the tiers below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto

from energyopt.core.errors import ConfigError

from ..batch import BlockCopy, CacheShape
from ..disagg.bookkeeping import HandOvers
from ..disagg.ports import REMOTE, Remote
from ..request import NO_BLOCK, Request
from .blocks import DEVICE, BlockPool
from .hashing import BlockHasher
from .inflight import Incoming, InFlight, Landed
from .keeper import Keeper
from .layout import FullAttention, Layout
from .lazy import LazyOffers
from .ports import LowerTiers, TierCounts
from .prefix import NO_HIT, PrefixFinder, PrefixHit, name_tokens
from .retention import Retention
from .tables import covers, extend, held, missing_in_all, must_copy, tables_of

_NOTHING_LANDED = Landed()


class Admission(Enum):
    """What became of a request: it can run, its blocks are being loaded, or what it hit below has gone meanwhile."""

    READY = auto()
    LOADING = auto()
    VANISHED = auto()


class KvCoordinator:
    """Looks up, allocates, registers and frees the blocks of requests, and moves them from and to ``tiers``.

    Invariants between steps: a request's tables cover at least ``num_computed`` tokens as far as they are still read,
    and a block that can be found by its hash was computed by a step that has ended, or loaded whole. ``chunk_tokens``
    is the most that one step computes for a request. With ``lazy_stores`` blocks are offered to the tiers when they are
    about to be evicted instead of when they are full. ``remote`` are engines to which prompts are handed over. Raises
    ConfigError for an interval or a match unit that does not fit the shape's groups.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        prefix_caching: bool = True,
        salt: bytes = b"",
        tiers: LowerTiers | None = None,
        remote: Remote | None = None,
        retention_interval: int | None = None,
        match_tokens: int | None = None,
        speculative: bool = False,
        lazy_stores: bool = False,
        chunk_tokens: int = 1 << 30,
    ) -> None:
        self.shape = shape
        self.layout = layout = Layout(shape.all_groups, match_tokens)
        self.retention = Retention(layout, retention_interval, layout.grain if speculative else 0)
        self.pool = pool = BlockPool(shape.num_blocks, len(layout.groups))
        self.prefix_caching = prefix_caching
        self.tiers = tiers = tiers if prefix_caching else None
        self.hit_tokens: Counter[str] = Counter()
        """Tokens taken from the cache by tier, re-admissions after preemption included."""
        self._inflight = InFlight(pool, tiers) if tiers is not None else None
        self.handovers = HandOvers(pool, layout, remote, self.name)
        self._hasher = BlockHasher(layout.unit, salt=salt)
        self._finder = PrefixFinder(self.retention, pool, self._hasher, tiers, self._inflight)
        self._keeper = Keeper(
            self.retention, pool, caching=prefix_caching, offering=tiers is not None and not lazy_stores
        )
        reserve = 2 * layout.peak_blocks(min(chunk_tokens, self.capacity), chunk_tokens)
        self._lazy = LazyOffers(pool, reserve) if tiers is not None and lazy_stores else None
        self._chunk = chunk_tokens
        self._copies: list[BlockCopy] = []
        self._pinned: list[int] = []
        # Whoever frees its blocks last is evicted last: one state makes a whole prefix usable.
        self._freeing = sorted(range(len(layout.groups)), key=lambda g: not isinstance(layout.groups[g], FullAttention))

    @property
    def capacity(self) -> int:
        """Tokens of the first group that one request alone can have in the pool."""
        return self.shape.num_blocks * self.shape.block_tokens

    @property
    def busy(self) -> bool:
        """Whether a copy to or from a lower tier or another engine is under way, or blocks are lent."""
        return self.handovers.busy or (self._inflight is not None and self._inflight.busy)

    @property
    def load_failures(self) -> int:
        """Loads that did not arrive whole, so that their requests had to compute."""
        return self.handovers.failures + (self._inflight.failures if self._inflight is not None else 0)

    def name(self, request: Request) -> None:
        """Hash a new request's prompt ahead of ``lookup``: any thread, before the scheduler knows the request."""
        if self.prefix_caching:
            name_tokens(self._hasher, request)

    def lookup(self, request: Request) -> PrefixHit:
        """The longest cached prefix, at most ``num_tokens - 1``: one token is left for the logits."""
        if (handed := self.handovers.hit(request)) is not None:
            return handed
        return self._finder.find(request) if self.prefix_caching else NO_HIT

    def can_admit(self, request: Request, hit: PrefixHit, *, spare: int) -> bool:
        """Whether all known tokens of ``request`` fit with ``spare`` blocks a group left over for others."""
        mine = hit.blocks
        revived = self.pool.count_idle(mine) + self.pool.count_idle([source for _, source in hit.tails])
        fresh = self.layout.peak_blocks(request.num_tokens, self._chunk) - len(mine)
        return max(0, fresh) + revived + spare * len(self.layout.groups) <= self.pool.num_available

    def admit(self, request: Request, hit: PrefixHit) -> Admission:
        """Give the blocks of a prefix to a request that has none, and begin to load those that are not here yet.

        Everything that was hit is taken before anything is allocated, so that one group cannot evict another's hit.
        """
        self.pool.touch(hit.blocks)
        self.pool.touch(source for _, source in hit.tails)
        tables = [list(table) for table in hit.tables] or [[] for _ in self.layout.groups]
        slots = self.pool.allocate(len(hit.incoming))
        for (group, index, _), slot in zip(hit.incoming, slots, strict=True):
            tables[group][index] = slot
        for group, source in hit.tails:
            tables[group] += self.pool.allocate(1)
            self._copy(source, tables[group][-1])
        request.block_ids, request.other_tables = tables[0], tables[1:]
        if hit.known > hit.tokens:
            request.kv.shared_boundary = max(request.kv.shared_boundary, hit.known)
        if not hit.incoming:
            self.begin(request, hit)
            self.handovers.used(request)
            return Admission.READY
        if self._load(request, hit, slots):
            return Admission.LOADING
        self.free(request)
        request.kv.tiers = False
        return Admission.VANISHED

    def begin(self, request: Request, hit: PrefixHit) -> None:
        """All blocks of the prefix hold their tokens now: the request may run."""
        request.num_computed = hit.tokens
        request.kv.covered = hit.tokens
        self._keeper.begin(request)
        for tier, tokens in hit.by_tier.items():
            self.hit_tokens[tier] += tokens

    def chunk_end(self, request: Request, stop: int) -> int:
        """``stop``, or the earlier position at which a chunk must end so that a state can be kept there."""
        return min(stop, self.retention.stop(request.num_computed, request.kv.boundaries))

    def room(self, request: Request, wanted: int) -> int:
        """How many of its next ``wanted`` tokens the request's own blocks and the idle ones can take."""
        low, high = 0, wanted
        while low < high:
            middle = high if low == 0 and high == wanted else (low + high + 1) // 2
            missing = missing_in_all(self.layout, request, request.num_computed + middle, self.pool)
            if missing <= self.pool.num_available:
                low = middle
            else:
                high = middle - 1
        return low

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Let the request's blocks cover ``num_tokens``; False, and nothing changed, if the pool has too few."""
        if num_tokens <= request.kv.covered:
            return True
        missing = missing_in_all(self.layout, request, num_tokens, self.pool)
        if missing > self.pool.num_available:
            return False
        if self.layout.plain:  # as below
            request.block_ids += self.pool.allocate(missing)
            request.kv.covered = len(request.block_ids) * self.shape.block_tokens
            return True
        tables = tables_of(request)
        for spec, table in zip(self.layout.groups, tables, strict=True):
            index = (num_tokens - 1) // spec.block_tokens
            if index < len(table) and must_copy(spec, table, request.num_computed, index, self.pool.is_shared):
                source, (table[index],) = table[index], self.pool.allocate(1)
                self._copy(source, table[index])
            else:
                extend(spec, table, num_tokens, self.pool)
        request.kv.covered = min(map(covers, self.layout.groups, tables))
        return True

    def commit(self, request: Request, num_computed: int) -> None:
        """A step computed the request up to ``num_computed``: blocks that became full can be found from now on."""
        start, request.num_computed = request.num_computed, num_computed
        if num_computed < request.kv.quiet:
            return
        if self.prefix_caching:
            name_tokens(self._hasher, request)
        self._keeper.advance(request, start, num_computed)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Copies to do before the next step."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def end_step(self) -> None:
        """After each step: sources of copies may go, and blocks that became full are offered to the tiers below."""
        if self._pinned:
            self.pool.free(self._pinned)
            self._pinned = []
        if self._inflight is None:
            return
        offers = self._keeper.offers if self._lazy is None else self._lazy.due()
        if offers:
            self._inflight.store(offers)
            self._keeper.offers = []

    def poll(self) -> Landed:
        """Loads that ended since the last call; ended stores and leases give their blocks back."""
        own = self._inflight.poll() if self._inflight is not None else _NOTHING_LANDED
        return own.beside(self.handovers.poll())

    def wait(self, seconds: float) -> None:
        """Sleep until a lower tier has news, at most ``seconds``: for a step loop that has nothing else to do."""
        if self.tiers is not None:
            self.tiers.wait(seconds)
        else:
            self.handovers.wait(seconds)

    def counts(self) -> tuple[TierCounts, ...]:
        """Counters of the tiers, and of the hand-overs as one more. Any thread."""
        return (*(self.tiers.counts() if self.tiers is not None else ()), *self.handovers.counts())

    def close(self) -> None:
        """End what the tiers and hand-overs have running; idempotent."""
        if self.tiers is not None:
            self.tiers.close()
        self.handovers.close()

    def free(self, request: Request) -> None:
        """Take all blocks away, tail first; full ones stay cached until they are reused, copies keep theirs."""
        tables = tables_of(request)
        if self._copies:  # a copy that has not run must not reach whoever gets its target next
            mine = {block for table in tables for block in table}
            self._copies = [copy for copy in self._copies if copy.target not in mine]
        for group in self._freeing:
            if group < len(tables):
                self.pool.free(held(reversed(tables[group])))
        request.block_ids, request.other_tables = [], []
        request.num_computed = request.kv.covered = 0
        if self._inflight is not None:
            self._inflight.abandon(request)
        self.handovers.abandon(request)

    def reset(self, tier: str | None = None) -> int:
        """Forget every cached prefix of one tier, or of all; returns the number of names forgotten.

        Running requests keep their blocks. Raises ConfigError for a tier that is not here.
        """
        forgotten = 0
        if tier in (None, DEVICE):
            forgotten += self.pool.reset()
            if self._inflight is not None:
                self._inflight.forget()
            self.handovers.forget()
        if tier != DEVICE and self.tiers is not None:
            forgotten += self.tiers.reset(tier)
        elif tier not in (None, DEVICE):
            raise ConfigError(f"There is no KV tier {tier!r}: here is {DEVICE} only.")
        return forgotten

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise EngineError unless the pool's references are exactly the blocks of ``requests`` and of copies."""
        references = self._inflight.references() if self._inflight is not None else Counter[int]()
        references.update(self.handovers.references())
        for request in requests:
            for table in tables_of(request):
                references.update(block for block in table if block != NO_BLOCK)
        references.update(self._pinned)
        self.pool.check_integrity(references)

    def _copy(self, source: int, target: int) -> None:
        """Copy a block before the next step; the source keeps a reference until that has run."""
        self._copies.append(BlockCopy(source, target))
        self._pinned.append(source)

    def _load(self, request: Request, hit: PrefixHit, slots: list[int]) -> bool:
        if hit.incoming[0][2] == REMOTE:
            self.handovers.load(request, hit, slots)
            return True
        per_block, hashes = self.layout.units_per_block, request.block_hashes
        blocks = [
            Incoming(slot, hashes[(index + 1) * per_block[group] - 1], group)
            for (group, index, _), slot in zip(hit.incoming, slots, strict=True)
        ]
        return self._inflight is not None and self._inflight.load(request, blocks)

"""Fixtures of the engine's tests: a scheduler over a fake runner that is inspected at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.records import Phase, StepRecord
from energyopt.core.units import Bytes
from engine.batch import Batch, CacheShape, score_limit
from engine.disagg.params import Transfer
from engine.disagg.ports import Remote
from engine.fake import FakeRunner
from engine.kv.coordinator import KvCoordinator
from engine.kv.layout import GroupSpec
from engine.kv.ports import LowerTiers
from engine.request import Request, SamplingParams, Status
from engine.scheduler import Scheduler
from engine.settled import Settled
from engine.speculative.drafts import Drafts
from engine.step import StepLoop


class Rig:
    """A scheduler, a fake runner and a step loop; every step checks what must hold at every step."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_tokens: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 4096,
        prefix_caching: bool = True,
        eos_ids: frozenset[int] = frozenset(),
        say: Sequence[int] | None = None,
        groups: tuple[GroupSpec, ...] = (),
        tiers: Callable[[FakeRunner], LowerTiers] | None = None,
        remote: Callable[[FakeRunner], Remote] | None = None,
        retention_interval: int | None = 0,
        match_tokens: int | None = None,
        speculative: bool = False,
        random_vocab: int | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        if groups:
            block_tokens = groups[0].block_tokens
        self.config = EngineConfig(
            model="fake",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv=KvConfig(block_tokens=block_tokens, prefix_caching=prefix_caching),
        )
        shape = CacheShape(num_blocks, block_tokens, Bytes(1), groups)
        self.clock = FakeClock()
        self.runner = FakeRunner(shape, self.clock, step_time=self._inspect, say=say, random_vocab=random_vocab)
        self.cache = KvCoordinator(
            shape,
            prefix_caching=prefix_caching,
            tiers=tiers(self.runner) if tiers else None,
            remote=remote(self.runner) if remote else None,
            retention_interval=retention_interval,
            match_tokens=match_tokens,
            speculative=speculative,
            chunk_tokens=max_num_batched_tokens,
        )
        self.scheduler = Scheduler(
            self.config,
            self.cache,
            max_model_len=max_model_len,
            eos_ids=eos_ids,
            drafts=drafts,
            most_scored=score_limit(self.runner),
        )
        self.batches: list[Batch] = []
        self.records: list[StepRecord] = []
        self._loop = StepLoop(self.scheduler, self.runner, self._emit)

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        name: str | None = None,
        ignore_eos: bool = False,
        stop_token_ids: tuple[int, ...] = (),
        transfer: Transfer | None = None,
    ) -> Request:
        """Queue a request that arrives now."""
        params = SamplingParams(
            max_tokens=max_tokens, ignore_eos=ignore_eos, stop_token_ids=stop_token_ids, transfer=transfer
        )
        name = name or f"r{len(self.batches)}-{self.scheduler.num_waiting}-{self.clock.now()}"
        request = Request(name, tuple(prompt), params, self.clock.now())
        self.scheduler.add(request)
        self.clock.advance(1e-6)
        return request

    def step(self) -> bool:
        """One step under inspection; False if there was nothing to do."""
        decoding = [request for request in self.scheduler.running() if request.phase is Phase.DECODE]
        worked = self._loop.step()
        self.scheduler.check_integrity()
        if worked:
            served = {item.request.id for item in self.batches[-1].items}
            starved = [r.id for r in decoding if r.id not in served and r.status is not Status.PREEMPTED]
            starved = [] if self.cache.busy else starved  # a copy may hold the block that the oldest needs
            assert not starved, f"decodes without a token: {starved}"
        return worked

    def drain(self, limit: int = 20_000) -> None:
        """Step until nothing is left; fails if that takes more than ``limit`` steps."""
        for _ in range(limit):
            if not self.step() and not (self.cache.busy or self.scheduler.has_work):
                assert self.cache.pool.num_used == 0
                return
        raise AssertionError(f"not drained after {limit} steps")

    def ask(self, prompt: Sequence[int], max_tokens: int = 1) -> Request:
        """Serve one request to its end, alone; ``cached_tokens`` of the answer is its hit."""
        request = self.add(prompt, max_tokens, ignore_eos=True)
        self.drain()
        return request

    def _inspect(self, batch: Batch) -> float:
        """Called by the runner with each batch: the budgets hold, and the blocks cover what is computed."""
        assert 0 < batch.num_tokens <= self.config.max_num_batched_tokens
        assert self.scheduler.num_running <= self.config.max_num_seqs
        decodes = [item.request.phase is Phase.DECODE for item in batch.items]
        assert decodes == sorted(decodes, reverse=True), "a decode stands behind a prefill"
        assert len({item.request.id for item in batch.items}) == len(batch.items)
        for item in batch.items:
            assert item.count > 0
            assert item.start == item.request.num_computed
            assert item.sample == (item.start + item.count - len(item.draft) == item.request.num_tokens)
            assert len(item.request.block_ids) * self.cache.shape.block_tokens >= item.start + item.count
        self.batches.append(batch)
        return 0.01

    def _emit(self, settled: Settled, record: StepRecord) -> None:
        assert [share.request_id for share in record.shares] == [i.request.id for i in self.batches[-1].items]
        self.records.append(record)


@pytest.fixture(scope="session")
def make_rig() -> type[Rig]:
    """The class itself: test modules cannot import a conftest."""
    return Rig

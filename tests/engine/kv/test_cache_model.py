"""Scheduler and cache under any order of events, over every kind of layer, with tiers that are slow, fail and forget.

The runner keeps digests in the blocks and refuses to compute from a block that does not hold the request's own prefix,
so a wrong hit, a block freed too early or a load that was believed too soon ends the run.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig
from energyopt.core.records import FinishReason, Phase, StepRecord
from energyopt.core.units import Bytes
from engine.batch import CacheShape
from engine.fake import FakeRunner
from engine.kv.coordinator import KvCoordinator
from engine.kv.fake_tiers import FakeTiers
from engine.kv.layout import ChunkedLocal, FullAttention, GroupSpec, Layout, RecurrentState, SlidingWindow
from engine.request import Request, SamplingParams, Status
from engine.scheduler import Scheduler
from engine.settled import Settled
from engine.step import StepLoop


@dataclass(frozen=True)
class Case:
    groups: tuple[GroupSpec, ...]
    match: int | None = None
    intervals: tuple[int | None, ...] = (None, 0)


CASES = (
    Case((FullAttention(4),)),
    Case((FullAttention(8),), match=2),
    Case((FullAttention(4), SlidingWindow(2, window=5)), intervals=(None, 0, 4, 8)),
    Case((FullAttention(4), ChunkedLocal(4, chunk=8)), intervals=(None, 0, 8)),
    Case((FullAttention(4), RecurrentState(8)), intervals=(None, 0, 8, 16)),
    Case((FullAttention(4), RecurrentState(8)), match=2, intervals=(None, 0, 8)),
    Case((RecurrentState(4),), intervals=(None, 0, 8)),
    Case(
        (FullAttention(2), RecurrentState(8), SlidingWindow(4, window=6), RecurrentState(4)), intervals=(None, 0, 8, 16)
    ),
    Case((SlidingWindow(4, window=7), ChunkedLocal(8, chunk=16), FullAttention(8)), match=4),
)


class CacheModel(RuleBasedStateMachine):
    """Prompts are cut from three long ones, so that they share prefixes and part anywhere."""

    @initialize(
        case=st.sampled_from(CASES),
        spare=st.integers(0, 30),
        budget=st.integers(3, 40),
        tiers=st.sampled_from((None, {"host": 40}, {"host": 6, "disk": None})),
        pick=st.randoms(use_true_random=False),
        speculative=st.booleans(),
    )
    def make(
        self,
        case: Case,
        spare: int,
        budget: int,
        tiers: dict[str, int | None] | None,
        pick: random.Random,
        speculative: bool,
    ) -> None:
        blocks = Layout(case.groups).peak_blocks(64, chunk=1) + spare
        shape = CacheShape(blocks, case.groups[0].block_tokens, Bytes(1), case.groups)
        config = EngineConfig(model="fake", max_num_seqs=3, max_num_batched_tokens=budget)
        runner = FakeRunner(shape, FakeClock())
        chance = pick.random() / 2
        odds = (pick.random() < chance for _ in itertools.count())
        self.tiers = (
            None
            if tiers is None
            else FakeTiers(
                tiers,
                read=runner.block,
                write=runner.set_block,
                delays=(pick.randrange(5) for _ in itertools.count()),
                failures=odds,
                gone=odds,
                late=odds,
            )
        )
        self.cache = KvCoordinator(
            shape,
            tiers=self.tiers,
            retention_interval=pick.choice(case.intervals),
            match_tokens=case.match,
            speculative=speculative,
            chunk_tokens=budget,
        )
        self.scheduler = Scheduler(config, self.cache, max_model_len=64)
        self.loop = StepLoop(self.scheduler, runner, self.emit)
        self.live: dict[str, Request] = {}
        self.names = itertools.count()
        self.shares: dict[str, int] = {}
        self.finished = 0

    def emit(self, settled: Settled, record: StepRecord) -> None:
        for share in settled.shares:
            request = self.live[share.request_id]
            self.shares.setdefault(share.request_id, 0)
            if share.phase is Phase.PREFILL and request.num_preemptions == 0:
                self.shares[share.request_id] += share.computed_tokens + sum(share.cached_tokens.values())
        for token in settled.tokens:
            if token.request.finish_reason is not None:
                request = self.live.pop(token.request.id)
                self.finished += 1
                if request.num_preemptions == 0:
                    assert self.shares[request.id] == len(request.prompt), "cached and computed are not the prompt"

    @rule(base=st.integers(0, 2), cut=st.integers(0, 40), tail=st.integers(1, 16), output=st.integers(1, 8))
    def add(self, base: int, cut: int, tail: int, output: int) -> None:
        name = str(next(self.names))
        own = random.Random(f"{cut}{tail}")
        prompt = (*range(base * 100, base * 100 + cut), *(own.randrange(900, 903) for _ in range(tail)))
        params = SamplingParams(max_tokens=min(output, 64 - len(prompt)), ignore_eos=True)
        self.live[name] = Request(name, prompt, params, FakeClock().now())
        self.scheduler.add(self.live[name])

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.loop.step()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.scheduler.finish(request, FinishReason.ABORT)
        assert request.status is Status.FINISHED

    @rule(tier=st.sampled_from((None, "device", "host")))
    def reset(self, tier: str | None) -> None:
        if self.tiers is not None or tier != "host":
            self.cache.reset(tier)

    @invariant()
    def accounts(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            pool = self.cache.pool
            assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks

    def teardown(self) -> None:
        """Everybody who is left finishes, and then nothing is held."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(4000):
            if not (self.scheduler.has_work or self.cache.busy):
                break
            self.loop.step()
        assert not self.live
        assert not self.scheduler.has_work
        assert self.cache.pool.num_used == 0
        self.scheduler.check_integrity()


TestCacheModel = CacheModel.TestCase
TestCacheModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

"""Several batches under way: the tokens are those of one at a time, whatever is preempted or aborted meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.records import FinishReason
from energyopt.core.units import Bytes, Seconds
from engine.batch import CacheShape
from engine.fake import FakeRunner
from engine.fake_pipeline import FakePipeline
from engine.flights import Flights, OneAtATime, Pipeline, as_pipeline
from engine.kv.coordinator import KvCoordinator
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.settled import Settled
from engine.step import StepLoop

PROMPTS = [[*range(12), *range(100 * n, 100 * n + 3 * n + 1)] for n in range(8)]


class Drive:
    """A scheduler and a loop over a fake pipeline of some depth; every step is checked."""

    def __init__(self, depth: int, *, blocks: int = 64, budget: int = 32, prompts: list[list[int]] = PROMPTS) -> None:
        shape = CacheShape(blocks, 4, Bytes(1))
        self.runner = FakePipeline(shape, depth=depth)
        config = EngineConfig(model="fake", max_num_seqs=6, max_num_batched_tokens=budget, kv=KvConfig(block_tokens=4))
        self.scheduler = Scheduler(config, KvCoordinator(shape), max_model_len=4096, depth=depth)
        self.sizes: list[int] = []
        self.loop = StepLoop(self.scheduler, self.runner, lambda settled, record: self._note(settled))
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        self.requests = [Request(str(n), tuple(prompt), params, Seconds(float(n))) for n, prompt in enumerate(prompts)]
        for request in self.requests:
            self.scheduler.add(request)

    def _note(self, settled: Settled) -> None:
        self.sizes.append(len(settled.shares))

    def drain(self) -> list[list[int]]:
        while self.loop.step():
            self.scheduler.check_integrity()
        assert not self.scheduler.has_work
        assert self.scheduler.cache.pool.num_used == 0
        return [request.output for request in self.requests]


def test_a_runner_is_a_pipeline_of_one_unless_it_says_more() -> None:
    assert isinstance(as_pipeline(FakeRunner()), OneAtATime)
    pipeline = FakePipeline(depth=3)
    assert as_pipeline(pipeline) is pipeline
    assert isinstance(pipeline, Pipeline)
    assert [Flights(3).share(running) for running in (0, 1, 3, 4, 7)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("blocks", [64, 18], ids=["roomy", "preempted"])
@pytest.mark.parametrize("depth", [2, 3])
def test_the_same_tokens_with_a_full_pipeline(depth: int, blocks: int) -> None:
    one, many = Drive(1, blocks=blocks), Drive(depth, blocks=blocks)
    assert many.drain() == one.drain()
    assert (one.runner.most, many.runner.most) == (1, depth)
    assert (many.scheduler.counters.preemptions > 0) == (blocks == 18)


def test_decodes_are_shared_out_over_the_batches_under_way() -> None:
    """Six requests that decode are three and three: neither stage of two waits for the other's requests."""
    drive = Drive(2, prompts=[[n] for n in range(6)])
    drive.drain()
    assert set(drive.sizes[4:-4]) == {3}


@settings(max_examples=30, deadline=None)
@given(
    depth=st.integers(1, 4),
    blocks=st.integers(14, 40),
    budget=st.integers(6, 40),
    ends=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 7)), max_size=6),
)
def test_requests_that_are_aborted_in_flight_leave_nothing_and_change_nobody(
    depth: int, blocks: int, budget: int, ends: list[tuple[int, int]]
) -> None:
    wanted = Drive(1).drain()
    drive = Drive(depth, blocks=blocks, budget=budget)
    steps = 0
    while True:
        for at, number in ends:
            if at == steps:
                drive.scheduler.finish(drive.requests[number], FinishReason.ABORT)
        if not drive.loop.step():
            break
        drive.scheduler.check_integrity()
        steps += 1
    assert drive.scheduler.cache.pool.num_used == 0
    for request, output in zip(drive.requests, wanted, strict=True):
        if request.finish_reason is FinishReason.ABORT:
            assert request.output == output[: len(request.output)]
        else:
            assert request.output == output

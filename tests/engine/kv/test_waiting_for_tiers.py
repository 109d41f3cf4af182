"""Scheduler and cache over tiers that are slow, fail, forget and answer late: reports from the field, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from energyopt.core.records import FinishReason
from engine.fake import FakeRunner
from engine.kv.chooser import LoadIfCheaper
from engine.kv.fake_tiers import FakeTiers
from engine.kv.layout import FullAttention, RecurrentState, SlidingWindow
from engine.kv.linear import LinearCost
from engine.kv.ports import Found, Transfer
from engine.request import Request, Status

HYBRID = (FullAttention(4), SlidingWindow(4, window=7), RecurrentState(8))
Build = Callable[[FakeRunner], FakeTiers]


def prompt(length: int, own: int = 0, shared: int = 1000) -> list[int]:
    return [token if token < shared else 10_000 * own + token for token in range(1, length + 1)]


def tiers(
    capacities: dict[str, int | None] | None = None,
    *,
    delay: int = 0,
    failures: Iterator[bool] | None = None,
    gone: Iterator[bool] | None = None,
    late: Iterator[bool] | None = None,
    dear: Iterator[bool] | None = None,
) -> Build:
    return lambda runner: FakeTiers(
        capacities or {"host": None},
        read=runner.block,
        write=runner.set_block,
        delays=itertools.repeat(delay),
        failures=failures,
        gone=gone,
        late=late,
        dear=dear,
    )


@pytest.mark.parametrize("late", [None, True], ids=["at once", "late answers"])
def test_a_hybrids_load_that_costs_more_than_computing_is_not_made(make_rig: Any, late: bool | None) -> None:
    """Attention, windows and states are weighed together: only all of them save a prefill."""
    rig = make_rig(
        groups=HYBRID,
        tiers=tiers(dear=iter([True, False]), late=iter([True, False, True]) if late else None),
        retention_interval=None,
    )
    first = rig.ask(prompt(41))
    evict_device(rig)
    computed = rig.ask(prompt(41))
    assert (computed.cached_by_tier, tuple(computed.output)) == ({}, tuple(first.output))
    (names, tokens) = rig.cache.tiers.weighed[0]
    assert set(names) == {"host"}
    assert tokens == 40
    assert len(names) > 40 // 4, "states and windows cost bytes too"
    assert len(rig.cache.tiers.weighed) == 1, "a choice stands while the request waits"
    evict_device(rig)
    loaded = rig.ask(prompt(41))
    assert (loaded.cached_by_tier, tuple(loaded.output)) == ({"host": 40}, tuple(first.output))


class Weighing(FakeTiers):
    """Everything is in the host tier, what came after ``near`` was noted on the disk; a chooser weighs the loads."""

    def __init__(self, runner: FakeRunner, *slow: str, late: Iterator[bool] | None = None) -> None:
        super().__init__({"host": None}, read=runner.block, write=runner.set_block, late=late)
        compute, loads = LinearCost(), {"host": LinearCost(), "disk": LinearCost()}
        for amount in (10.0, 20.0, 30.0):
            compute.observe(amount, amount)
            for tier, cost in loads.items():
                cost.observe(amount, amount * (1e3 if tier in slow else 1e-3))
        self.chooser = LoadIfCheaper(compute, loads, block_tokens=4, block_bytes=1)
        self.near: set[bytes] | None = None

    def find(self, keys: Sequence[bytes], *, weigh: bool) -> Found:
        found = super().find(keys, weigh=weigh)
        return replace(found, tiers=found.tiers[: self.chooser.worth_loading(found.tiers)]) if weigh else found

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        return self.chooser.worth(tiers, tokens)

    def note_near(self) -> None:
        self.near = set(self._known["host"])

    def _first_with(self, key: bytes) -> str:
        place = super()._first_with(key)
        return "disk" if place and self.near is not None and key not in self.near else place


@pytest.mark.parametrize("groups", [(), HYBRID], ids=["full", "hybrid"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late answers"])
def test_a_tier_that_was_refused_is_tried_again_now_and_then(make_rig: Any, groups: Any, late: bool) -> None:
    answers = itertools.cycle([True, False, False, False]) if late else None
    rig = make_rig(groups=groups, tiers=lambda runner: Weighing(runner, "host", late=answers), retention_interval=None)
    loaded = 0
    for _ in range(33):
        evict_device(rig)
        loaded += bool(rig.ask(prompt(41)).cached_by_tier)
    assert loaded == 1


@pytest.mark.parametrize("groups", [(), HYBRID], ids=["full", "hybrid"])
def test_what_lies_before_a_tier_that_is_not_worth_its_load_is_loaded(make_rig: Any, groups: Any) -> None:
    rig = make_rig(groups=groups, tiers=lambda runner: Weighing(runner, "disk"), retention_interval=None)
    rig.ask(prompt(25))
    rig.cache.tiers.note_near()
    first = rig.ask(prompt(57))
    evict_device(rig)
    again = rig.ask(prompt(57))
    assert (again.cached_by_tier, tuple(again.output)) == ({"host": 24}, tuple(first.output))


def evict_device(rig: Any) -> None:
    rig.cache.reset("device")


@pytest.mark.parametrize("groups", [(), HYBRID], ids=["full", "hybrid"])
@pytest.mark.parametrize("divergence", range(42))
def test_a_reloaded_prefix_is_the_one_that_was_stored(make_rig: Any, groups: Any, divergence: int) -> None:
    """The maintainers' round trip at every offset of a block: store, reset the device, resend, equal text."""
    rig = make_rig(groups=groups, tiers=tiers(delay=2), retention_interval=None)
    plain = make_rig(groups=groups, prefix_caching=False)
    rig.ask(prompt(41))
    evict_device(rig)
    other = prompt(41, own=1, shared=divergence + 1)
    again = rig.ask(other, max_tokens=6)
    grain = rig.cache.layout.grain
    assert again.cached_by_tier == ({"host": hit} if (hit := min(divergence, 40) // grain * grain) else {})
    assert again.output == plain.ask(other, max_tokens=6).output


def test_sources_add_up_to_the_prompt(make_rig: Any) -> None:
    rig = make_rig(num_blocks=24, tiers=tiers({"host": 6, "disk": None}))
    rig.ask(prompt(40))
    rig.ask(prompt(60, own=1, shared=0))  # takes 15 of 24 blocks, so 1 of the first 10 goes
    again = rig.ask(prompt(40))
    assert set(again.cached_by_tier) == {"device", "disk"}
    sources = rig.scheduler.counters.prompt_by_source
    assert sum(sources.values()) == rig.scheduler.counters.prompt_tokens == 140
    assert sources["local_compute"] == 140 - again.cached_tokens
    for record in rig.records:
        for share in record.shares:
            if share.cached_tokens:
                assert sum(share.cached_tokens.values()) == share.context_tokens


def test_nobody_waits_behind_a_load(make_rig: Any) -> None:
    rig = make_rig(tiers=tiers(delay=20))
    rig.ask(prompt(30))
    evict_device(rig)
    slow, quick = rig.add(prompt(30), 2), rig.add(prompt(9, own=1, shared=0), 2)
    for _ in range(6):
        rig.step()
    assert slow.status is Status.LOADING
    assert quick.status is Status.FINISHED
    rig.drain()
    assert slow.cached_by_tier == {"host": 28}


def test_a_late_answer_is_asked_for_again(make_rig: Any) -> None:
    answers = itertools.chain([False, True, True, True], itertools.repeat(False))
    rig = make_rig(tiers=tiers(late=answers))
    rig.ask(prompt(30))
    evict_device(rig)
    waiting, quick = rig.add(prompt(30), 1), rig.add(prompt(3, own=1, shared=0), 1)
    rig.step()
    assert waiting.status is Status.WAITING
    rig.drain()
    assert quick.finish_reason is waiting.finish_reason is FinishReason.LENGTH
    assert waiting.cached_by_tier == {"host": 28}


def test_a_prefix_that_is_being_loaded_is_not_loaded_twice(make_rig: Any) -> None:
    rig = make_rig(tiers=tiers(delay=3))
    rig.ask(prompt(30))
    evict_device(rig)
    both = [rig.add([*prompt(30), number], 1) for number in range(2)]
    rig.drain()
    assert [request.cached_by_tier for request in both] == [{"host": 28}, {"device": 28}]
    assert rig.cache.tiers.counts()[0].loads == 7


@pytest.mark.parametrize("groups", [(), HYBRID], ids=["full", "hybrid"])
def test_a_failed_load_is_computed(make_rig: Any, groups: Any) -> None:
    """vllm#49250: recomputing after a failed load gave other text."""
    rig = make_rig(groups=groups, tiers=tiers(failures=itertools.chain([True], itertools.repeat(False))))
    plain = make_rig(groups=groups, prefix_caching=False)
    rig.ask(prompt(41))
    evict_device(rig)
    again = rig.ask(prompt(41), max_tokens=8)
    assert again.output == plain.ask(prompt(41), max_tokens=8).output
    assert again.cached_tokens == 0
    assert rig.cache.load_failures == 1
    evict_device(rig)
    assert rig.ask(prompt(41)).cached_by_tier == {"host": 40}


def test_blocks_that_vanished_are_computed(make_rig: Any) -> None:
    rig = make_rig(tiers=tiers(gone=itertools.repeat(True)))
    rig.ask(prompt(30))
    evict_device(rig)
    assert rig.ask(prompt(30)).cached_tokens == 0
    assert rig.cache.load_failures == 0, "nothing began, so nothing failed"


@pytest.mark.parametrize("steps", range(1, 7))
def test_an_abort_during_a_load_leaves_the_blocks_to_the_copy(make_rig: Any, steps: int) -> None:
    """vllm#47282: a block was given away while a copy still wrote to it."""
    rig = make_rig(num_blocks=24, tiers=tiers(delay=4))
    rig.ask(prompt(40))
    evict_device(rig)
    victim = rig.add(prompt(40), 2)
    for _ in range(steps):
        rig.step()
    if victim.status is Status.LOADING:
        held = rig.cache.pool.num_used
        rig.scheduler.finish(victim, FinishReason.ABORT)
        assert rig.cache.pool.num_used == held
    for number in range(1, 5):
        rig.add(prompt(50, own=number, shared=0), 3, ignore_eos=True)
    rig.drain()


def test_a_finished_request_leaves_its_blocks_to_the_store(make_rig: Any) -> None:
    """vllm#45704, #46278: what was stored had been overwritten by the next request."""
    rig = make_rig(num_blocks=12, tiers=tiers(delay=6))
    for number in range(6):
        rig.add(prompt(30, own=number, shared=0), 2, ignore_eos=True)
    rig.drain()
    evict_device(rig)
    for number in range(6):
        assert rig.ask(prompt(30, own=number, shared=0)).cached_by_tier == {"host": 28}


def test_a_store_that_ends_last_leaves_the_tail_first_in_line(make_rig: Any) -> None:
    """The copy gives the blocks back after the request did; the prefix must still lose its end before its beginning."""
    rig = make_rig(num_blocks=12, tiers=tiers(delay=9), max_num_batched_tokens=64)
    rig.ask(prompt(40))
    rig.cache.reset("host")
    rig.ask(prompt(16, own=1, shared=0))  # needs 4 blocks, 2 were never used
    assert rig.ask(prompt(40)).cached_by_tier == {"device": 32}


@pytest.mark.parametrize("groups", [(), HYBRID], ids=["full", "hybrid"])
def test_something_always_finishes_under_memory_pressure(make_rig: Any, groups: Any) -> None:
    """vllm#45388, #45387: nothing ran and everything waited, for ever, with offload and a full pool."""
    blocks = 20 if groups else 14
    flaky = itertools.cycle([False, False, True])
    rig = make_rig(groups=groups, num_blocks=blocks, tiers=tiers({"host": 60}, delay=3, failures=flaky))
    sent = [rig.add(prompt(10 + at % 24, own=at % 5, shared=at % 17), 6, ignore_eos=True) for at in range(120)]
    rig.drain()
    assert all(len(request.output) == 6 for request in sent)


def test_a_lone_request_outlives_loads_that_hold_the_pool(make_rig: Any) -> None:
    """The only running request needs a block that loads hold: they are called off, and it goes on."""
    rig = make_rig(num_blocks=20, tiers=tiers(delay=50), max_num_batched_tokens=64)
    rig.ask(prompt(44, own=1, shared=0))
    evict_device(rig)
    lone = rig.add(prompt(20), 50, ignore_eos=True)
    rig.step()
    loading = rig.add(prompt(44, own=1, shared=0), 2, ignore_eos=True)
    rig.drain()
    assert len(lone.output) == 50
    assert loading.cached_by_tier.get("host", 0) == 0


def test_a_preempted_request_may_load_what_it_lost(make_rig: Any) -> None:
    """vllm#46014: admitting a preempted request again with offload tripped an assertion."""
    rig = make_rig(num_blocks=16, tiers=tiers(delay=1))
    sent = [rig.add(prompt(24, own=number, shared=0), 24, ignore_eos=True) for number in range(3)]
    rig.drain()
    assert rig.scheduler.counters.preemptions > 0
    assert rig.cache.hit_tokens["host"] > 0
    assert all(len(request.output) == 24 for request in sent)


def test_counters_only_grow(make_rig: Any) -> None:
    """vllm-ascend#7871: a counter went down after an abort, and the metrics page answered 500."""
    rig = make_rig(num_blocks=16, tiers=tiers({"host": 20}, delay=2, failures=itertools.cycle([True, False])))
    seen = [0] * 6
    for number in range(60):
        request = rig.add(prompt(20, own=number % 4, shared=number % 9), 8, ignore_eos=True)
        for _ in range(number % 4):
            rig.step()
        if number % 3 == 0:
            rig.scheduler.finish(request, FinishReason.ABORT)
        counters = rig.scheduler.counters
        now = [counters.prompt_tokens, counters.output_tokens, counters.preemptions, counters.steps]
        now += [rig.cache.load_failures, sum(counters.prompt_by_source.values())]
        assert all(after >= before >= 0 for before, after in zip(seen, now, strict=True))
        assert now[0] == now[5]
        seen = now
    rig.drain()


def test_the_same_mask_decides_what_is_stored_below(make_rig: Any) -> None:
    """Of windows and states only those at reachable boundaries are named here, so only those are offered."""
    stored = {}
    for interval in (None, 0):
        rig = make_rig(groups=HYBRID, num_blocks=200, tiers=tiers(), retention_interval=interval)
        rig.ask(prompt(81))
        below: FakeTiers = rig.cache.tiers
        assert below.held("host") == rig.cache.pool.num_cached
        stored[interval] = below.held("host")
        evict_device(rig)
        assert rig.ask(prompt(81)).cached_by_tier == {"host": 80}
    # 20 attention blocks either way; all 20 windows and 10 states, or 2 windows and 1 state.
    assert stored == {None: 50, 0: 23}


def test_blocks_of_every_group_are_sighted_before_they_are_offered(make_rig: Any, monkeypatch: Any) -> None:
    """Admission after N sightings counts keys; a group whose keys are never shown would never be admitted."""
    rig = make_rig(groups=HYBRID, num_blocks=200, tiers=tiers())
    seen: list[bytes] = []
    offered: list[bytes] = []
    below, store = rig.cache.tiers, rig.cache.tiers.store
    monkeypatch.setattr(below, "seen", seen.extend)

    def noting(some: Sequence[Transfer]) -> int | None:
        offered.extend(one.key for one in some)
        ticket: int | None = store(some)
        return ticket

    monkeypatch.setattr(below, "store", noting)
    for _ in range(2):
        rig.ask(prompt(81))
    assert {len(key) for key in offered} == {16, 17}, "groups beside the first add a byte to the hash"
    assert all(seen.count(key) == 2 for key in offered)


def test_resets_by_tier(make_rig: Any) -> None:
    rig = make_rig(tiers=tiers({"host": None, "disk": None}))
    rig.ask(prompt(41))
    assert rig.cache.reset("host") == 10
    assert rig.ask(prompt(41)).cached_by_tier == {"device": 40}
    evict_device(rig)
    assert rig.ask(prompt(41)).cached_by_tier == {"disk": 40}
    assert rig.cache.reset() == 30
    assert rig.ask(prompt(41)).cached_tokens == 0


def test_a_reset_during_a_load_keeps_the_request_whole(make_rig: Any) -> None:
    rig = make_rig(tiers=tiers(delay=5))
    rig.ask(prompt(41))
    evict_device(rig)
    request: Request = rig.add(prompt(41), 1)
    rig.step()
    assert request.status is Status.LOADING
    rig.cache.reset()
    rig.drain()
    assert request.cached_by_tier == {"host": 40}
    assert rig.cache.lookup(rig.add(prompt(41), 1)).tokens == 0, "what was under way may not be found by others"
    rig.drain()


def test_memory_is_flat_over_many_requests(make_rig: Any) -> None:
    """vllm#44490: a list of new block ids grew for as long as the engine lived."""
    rig = make_rig(num_blocks=32, tiers=tiers({"host": 16}))
    sizes = []
    for round_ in range(2):
        for number in range(400):
            rig.add(prompt(12, own=number % 50, shared=number % 5), 2, ignore_eos=True)
        rig.drain()
        rig.batches.clear()
        rig.records.clear()
        sizes.append(_held(rig.scheduler, set()) if round_ else 0)
    for number in range(800):
        rig.add(prompt(12, own=number % 50, shared=number % 5), 2, ignore_eos=True)
    rig.drain()
    assert _held(rig.scheduler, set()) <= sizes[1] + 64


def _held(thing: object, known: set[int]) -> int:
    """Entries of all containers that hang on an object of the engine."""
    if id(thing) in known or isinstance(thing, str | bytes | int | float | type(None)):
        return 0
    known.add(id(thing))
    if isinstance(thing, dict):
        return len(thing) + sum(_held(value, known) for value in thing.values())
    if isinstance(thing, list | tuple | set):
        return len(thing) + sum(_held(value, known) for value in thing)
    names = [*getattr(thing, "__dict__", {}), *getattr(type(thing), "__slots__", ())]
    mine = type(thing).__module__.startswith("engine.")
    return sum(_held(getattr(thing, name), known) for name in names if hasattr(thing, name)) if mine else 0

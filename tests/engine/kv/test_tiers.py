"""Tiers as the coordinator uses them: round trips, tickets, composition, failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError
from engine.kv.block_store import Got, MemoryStore
from engine.kv.ports import Transfer

if TYPE_CHECKING:
    from tests.engine.kv.conftest import TierRig


class SlowStore(MemoryStore):
    """Answers when told to."""

    def __init__(self) -> None:
        super().__init__("bytes")
        self.lookups, self.reads = threading.Event(), threading.Event()
        self.lookups.set()
        self.reads.set()

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        assert self.lookups.wait(10)
        return super().contains(keys)

    def get(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> Sequence[Got]:
        assert self.reads.wait(10)
        return super().get(keys, into)


def test_a_block_comes_back_as_it_went(make_tiers: type[TierRig]) -> None:
    rig = make_tiers()
    rig.stored(a="one", b="two")
    assert rig.found("a", "b", "c") == ("host", "host")
    rig.load("a", "b")
    assert (rig.content(32), rig.content(33)) == ("one", "two")
    counts = rig.tiers.counts()[0]
    assert (counts.tier, counts.hits, counts.loads, counts.stores) == ("host", 2, 2, 2)
    assert counts.load_bytes == counts.store_bytes == 2 * 64
    assert [(record.blocks, record.size, record.good) for record in rig.loads] == [({"host": 2}, 128, True)]


def test_a_store_is_visible_only_when_complete(make_tiers: type[TierRig]) -> None:
    rig = make_tiers()
    rig.mover.gate.clear()
    ticket = rig.store(a="one")
    assert rig.found("a") == ()
    assert rig.tiers.poll().stored == ()
    assert rig.tiers.store([Transfer(b"a", 5)]) is None, "a block on its way was stored twice"
    rig.mover.gate.set()
    assert rig.until(lambda events: bool(events.stored)).stored == (ticket,)
    assert rig.found("a") == ("host",)


def test_a_load_is_over_only_when_complete(make_tiers: type[TierRig]) -> None:
    rig = make_tiers()
    rig.stored(a="one")
    rig.mover.gate.clear()
    ticket = rig.tiers.load([Transfer(b"a", 40)])
    rig.tiers.wait(0.02)
    assert rig.tiers.poll().loaded == ()
    rig.mover.gate.set()
    assert rig.until(lambda events: bool(events.loaded)).loaded == (ticket,)


def test_a_block_under_a_load_is_neither_evicted_nor_overwritten(make_tiers: type[TierRig]) -> None:
    """vLLM #47282: a block being read was given to a write."""
    rig = make_tiers(host_blocks=2)
    rig.stored(a="one", b="two")
    rig.mover.gate.clear()
    ticket = rig.tiers.load([Transfer(b"a", 40), Transfer(b"b", 41)])
    assert rig.store(c="three", d="four") is None, "there is no room while both slots are read"
    rig.mover.gate.set()
    assert rig.until(lambda events: bool(events.loaded)).loaded == (ticket,)
    assert (rig.content(40), rig.content(41)) == ("one", "two")
    rig.stored(c="three", d="four")
    assert rig.found("c", "d") == ("host", "host")


def test_a_load_of_what_vanished_does_not_begin(make_tiers: type[TierRig]) -> None:
    rig = make_tiers()
    rig.stored(a="one")
    assert rig.tiers.load([Transfer(b"a", 40), Transfer(b"gone", 41)]) is None
    assert rig.tiers.counts()[0].hits == 0


def test_admission_after_sightings(make_tiers: type[TierRig]) -> None:
    rig = make_tiers(sightings=2)
    rig.tiers.seen([b"a", b"b"])
    assert rig.store(a="one", b="two") is None
    rig.tiers.seen([b"a"])
    rig.stored(a="one", b="two")
    assert rig.found("a", "b") == ("host",)


def test_a_block_that_changed_in_memory_fails_the_load_and_is_forgotten(
    make_tiers: type[TierRig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_tiers()
    rig.stored(a="one", b="two")
    assert rig.host is not None
    block = rig.host.take(b"b")
    assert block is not None
    block.view[0] ^= 1
    block.release()
    with caplog.at_level(logging.WARNING):
        events = rig.load("a", "b")
    assert events.loaded == ()
    assert len(events.failed) == 1
    assert "1 blocks changed in memory" in caplog.text
    assert rig.found("a", "b") == ("host",)
    assert rig.tiers.counts()[0].failures == {"corrupt": 1}


def test_a_copy_that_raises_fails_its_ticket_and_loses_nothing(
    make_tiers: type[TierRig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_tiers()
    rig.stored(a="one")
    rig.mover.fail = True
    assert rig.load("a").loaded == ()
    ticket = rig.store(b="two")
    assert rig.until(lambda events: bool(events.stored)).stored == (ticket,)
    rig.mover.fail = False
    assert rig.found("b") == ()
    assert rig.found("a") == ("host",)
    assert "failed unexpectedly" in caplog.text


def test_every_tier_saves_and_the_first_with_a_hit_loads(make_tiers: type[TierRig]) -> None:
    disk, shared = MemoryStore("bytes"), MemoryStore("bytes")
    rig = make_tiers(stores={"disk": disk, "shared": shared})
    rig.stored(a="one", b="two")
    assert [count.stores for count in rig.tiers.counts()] == [2, 2, 2]
    assert rig.found("a", "b") == ("host", "host")
    rig.tiers.reset("host")
    assert rig.found("a", "b") == ("disk", "disk")
    rig.tiers.reset("disk")
    assert rig.found("a", "b") == ("shared", "shared")
    rig.load("a")
    assert rig.content(32) == "one"
    assert rig.found("a", "b") == ("host", "shared"), "what a store gave is kept in the host tier"
    assert [count.hits for count in rig.tiers.counts()] == [0, 0, 1]


def test_one_load_may_mix_tiers(make_tiers: type[TierRig]) -> None:
    rig = make_tiers(stores={"disk": MemoryStore("bytes")})
    rig.stored(a="one", b="two", c="three")
    rig.tiers.reset("host")
    rig.load("b")
    assert rig.found("a", "b", "c") == ("disk", "host", "disk")
    rig.load("a", "b", "c", to=40)
    assert [rig.content(slot) for slot in (40, 41, 42)] == ["one", "two", "three"]


def test_locate_answers_for_every_key(make_tiers: type[TierRig]) -> None:
    rig = make_tiers(stores={"disk": MemoryStore("bytes")})
    rig.stored(b="two")
    assert rig.tiers.locate([b"a", b"b"]).later
    rig.found("a")
    assert rig.tiers.locate([b"a", b"b"]).tiers == ("", "host")


def test_ask_later_propagates_from_any_store(make_tiers: type[TierRig]) -> None:
    slow = SlowStore()
    rig = make_tiers(stores={"disk": MemoryStore("bytes"), "shared": slow})
    slow.lookups.clear()
    assert rig.tiers.find([b"a"], weigh=True).later
    rig.tiers.wait(0.05)
    assert rig.tiers.find([b"a"], weigh=True).later, "the disk has answered, the shared store has not"
    slow.lookups.set()
    assert rig.found("a") == ()


def test_a_long_prefix_is_asked_for_in_pieces(make_tiers: type[TierRig]) -> None:
    blocks: dict[tuple[str, bytes], tuple[bytes, int]] = {}
    keys = [f"k{at}" for at in range(5000)]
    blocks.update({("bytes", key.encode()): (b"", 0) for key in keys})
    rig = make_tiers(stores={"disk": MemoryStore("bytes", blocks)})
    first = rig.tiers.find([key.encode() for key in keys], weigh=True)
    assert (first.later, first.tiers) == (True, ())
    assert rig.found(*keys) == ("disk",) * 5000


def test_a_store_that_does_not_answer_a_lookup_is_a_miss_and_is_left_alone(
    make_tiers: type[TierRig], caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowStore()
    rig = make_tiers(stores={"shared": slow}, patience=0.02)
    slow.lookups.clear()
    start = time.monotonic()
    assert rig.found("a") == ()
    assert time.monotonic() - start < 1
    assert not rig.tiers.find([b"b"], weigh=True).later, "the second request waits for nothing"
    assert "is left alone for a while" in caplog.text
    assert rig.tiers.counts()[1].failures == {"timeout": 1}
    slow.lookups.set()


def test_a_load_that_hangs_fails_in_time_and_touches_the_device_no_more(make_tiers: type[TierRig]) -> None:
    slow, clock = SlowStore(), FakeClock()
    rig = make_tiers(stores={"shared": slow}, clock=clock)
    rig.stored(a="one")
    rig.tiers.reset("host")
    assert rig.found("a") == ("shared",)
    slow.reads.clear()
    ticket = rig.tiers.load([Transfer(b"a", 40)])
    assert rig.tiers.poll().failed == ()
    clock.advance(11)
    assert rig.until(lambda events: bool(events.failed)).failed == (ticket,)
    rig.fill(40, "another request's")
    slow.reads.set()
    rig.stores["shared"]._loads.close(10)
    assert rig.content(40) == "another request's"


def test_a_store_that_is_down_costs_nothing_and_comes_back(
    make_tiers: type[TierRig], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = MemoryStore("bytes")
    rig = make_tiers(stores={"shared": store})
    rig.stored(a="one")
    rig.tiers.reset("host")
    store.down = True
    assert rig.found("a") == ("shared",), "it said so a moment ago"
    assert rig.load("a").loaded == ()
    assert rig.found("a") == ()
    rig.stored(b="two")
    assert rig.tiers.counts()[1].failures["unavailable"] >= 1
    assert caplog.text.count("is left alone") == 1
    store.down = False
    deadline = time.monotonic() + 5
    while not rig.found("a"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "answers again" in caplog.text
    assert len(rig.load("a").loaded) == 1


@pytest.mark.parametrize("damage", ["corrupt", "gone", "short"])
def test_a_bad_block_in_a_store_is_a_failed_load_and_then_a_miss(make_tiers: type[TierRig], damage: str) -> None:
    blocks: dict[tuple[str, bytes], tuple[bytes, int]] = {}
    store = MemoryStore("bytes", blocks)
    rig = make_tiers(stores={"disk": store})
    rig.stored(a="one", b="two")
    rig.tiers.reset("host")
    if damage == "corrupt":
        store.corrupt(b"b")
    elif damage == "gone":
        del blocks["bytes", b"b"]
    else:
        blocks["bytes", b"b"] = (b"short", 0)
    assert rig.found("a", "b") == ("disk", "disk")
    assert rig.load("a", "b").loaded == ()
    assert rig.found("a", "b") == ("host",), "the good half was kept, the bad one is known to be bad"
    assert sum(rig.tiers.counts()[1].failures.values()) == 1


def test_a_full_store_stops_saving_but_still_loads(make_tiers: type[TierRig], caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore("bytes")
    store.capacity = 1
    rig = make_tiers(stores={"disk": store})
    rig.stored(a="one", b="two")
    assert rig.tiers.counts()[1].failures["full"] == 1
    assert caplog.text.count("is full") == 1
    rig.tiers.reset("host")
    assert rig.found("a") == ("disk",)
    assert len(rig.load("a").loaded) == 1


def test_without_a_host_tier_blocks_go_through_staging(make_tiers: type[TierRig]) -> None:
    rig = make_tiers(host_blocks=0, stores={"disk": MemoryStore("bytes")}, staging=3)
    assert rig.tiers.names == ("disk",)
    rig.stored(a="one", b="two", c="three", d="four")
    assert rig.found("a", "b", "c", "d") == ("disk", "disk", "disk"), "the fourth found no buffer: nothing waits"
    rig.load("a", "b", "c", to=40)
    assert [rig.content(slot) for slot in (40, 41, 42)] == ["one", "two", "three"]


def test_a_store_gets_what_it_lacks_from_the_host_tier(make_tiers: type[TierRig]) -> None:
    disk = MemoryStore("bytes")
    rig = make_tiers(stores={"disk": disk})
    rig.stored(a="one")
    disk.reset()
    rig.tiers.reset("disk")
    rig.mover.fail = True  # the device is not asked
    assert rig.found("a") == ("host",)
    rig.stored(a="one")
    assert list(disk.contains([b"a"])) == [True]
    rig.mover.fail = False


def test_reset_of_an_unknown_tier_names_those_that_are_here(make_tiers: type[TierRig]) -> None:
    with pytest.raises(ConfigError, match="no KV tier 'tape': here are host"):
        make_tiers().tiers.reset("tape")


def test_reset_during_a_store_forgets_it_and_the_load_fails_or_is_whole(make_tiers: type[TierRig]) -> None:
    rig = make_tiers()
    rig.mover.gate.clear()
    rig.store(a="one")
    rig.tiers.reset()
    rig.mover.gate.set()
    rig.until(lambda events: bool(events.stored))
    assert rig.found("a") == ()


def test_wait_sleeps_until_there_is_news(make_tiers: type[TierRig]) -> None:
    rig = make_tiers()
    start = time.monotonic()
    rig.tiers.wait(0.03)
    assert time.monotonic() - start >= 0.03
    rig.mover.gate.clear()
    rig.store(a="one")
    threading.Timer(0.05, rig.mover.gate.set).start()
    start = time.monotonic()
    rig.tiers.wait(5.0)
    assert time.monotonic() - start < 2
    assert rig.tiers.poll().stored


def test_close_publishes_what_waits_and_refuses_the_rest(make_tiers: type[TierRig]) -> None:
    disk = MemoryStore("bytes")
    rig = make_tiers(stores={"disk": disk})
    rig.mover.gate.clear()
    rig.store(a="one", b="two")
    rig.mover.gate.set()
    rig.tiers.close()
    assert list(disk.contains([b"a", b"b"])) == [True, True]
    ticket = rig.tiers.store([Transfer(b"c", 3)])
    assert rig.tiers.poll().stored[-1:] == (ticket,)
    rig.tiers.close()

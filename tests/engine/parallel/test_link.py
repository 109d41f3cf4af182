"""What one pipeline stage sends, the next receives: in order, whole, bounded, and with an error if the other dies."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyopt.core.errors import EngineError
from engine.parallel import link
from engine.parallel.link import Link, SharedLink
from engine.parallel.memory import Arena, SharedMemory
from engine.parallel.process_group import GroupLink, gloo_group

CPU = torch.device("cpu")


def shared_ends() -> tuple[SharedMemory, Link, Link]:
    arena = Arena()
    region = SharedLink.reserve(arena)
    memory = SharedMemory.create(arena.size)
    SharedLink.initialize(memory, region)
    return memory, SharedLink(memory, region), SharedLink(memory, region)


def gloo_ends(meeting: Path) -> tuple[Link, Link]:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: gloo_group(meeting, "link", rank, 2, 20.0), range(2))
    return GroupLink(first, 1, CPU), GroupLink(second, 0, CPU)


@pytest.fixture(scope="module", params=["shared", "gloo"])
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Link, Link]:
    if request.param == "gloo":
        return gloo_ends(tmp_path_factory.mktemp("link") / "meet")
    return shared_ends()[1:]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=20),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_rows_arrive_in_order(ends: tuple[Link, Link], shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
    sender, receiver = ends
    sent = [torch.randn(shape).to(dtype) for shape in shapes]
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: deque(map(sender.send, sent), maxlen=0))
        for rows in sent:
            assert torch.equal(receiver.receive(dtype), rows)
        job.result(20)


def test_more_than_a_slot_and_more_than_all_slots_arrive_whole(ends: tuple[Link, Link]) -> None:
    rows = torch.arange(3 * link.SLOTS * link.SLOT_BYTES // 8, dtype=torch.float32).view(-1, 768)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(ends[0].send, rows.T)
        assert torch.equal(ends[1].receive(torch.float32), rows.T)
        job.result(20)


def test_a_row_beyond_a_slot_is_refused() -> None:
    _, sender, _ = shared_ends()
    with pytest.raises(EngineError, match="does not fit into a slot"):
        sender.send(torch.zeros(1, link.SLOT_BYTES // 4 + 1))


@pytest.mark.parametrize("sends", [True, False])
def test_a_death_wakes_either_end(sends: bool) -> None:
    memory, sender, receiver = shared_ends()
    threading.Timer(0.1, memory.end).start()
    until_full: Iterator[object] = map(receiver.receive, repeat(torch.float32))
    if sends:
        until_full = map(sender.send, repeat(torch.ones(2, 3)))
    with pytest.raises(EngineError, match="gone"):
        deque(until_full, maxlen=0)

"""Fixtures: ranks as threads of one process, each with its own end of a collective. Waits release Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.parallel.memory import Arena, SharedMemory
from engine.parallel.ports import Alone, Collective
from engine.parallel.process_group import GroupCollective, gloo_group
from engine.parallel.shared import SharedCollective

Part = Callable[[Collective], Any]


class Ranks:
    """``together`` calls a function once a rank, at once, and gives the results by rank; the first error is raised."""

    def __init__(self, makers: Sequence[Callable[[], Collective]], memory: SharedMemory | None = None) -> None:
        self.size = len(makers)
        self.memory = memory
        self._collectives: list[Collective | None] = [None] * self.size
        self._makers = makers
        self.together(lambda collective: None)

    def together(self, part: Part, ranks: Sequence[int] | None = None) -> list[Any]:
        def work(rank: int) -> Any:
            collective = self._collectives[rank] or self._makers[rank]()
            self._collectives[rank] = collective
            return part(collective)

        chosen = ranks or range(self.size)
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(work, rank) for rank in chosen]
            return [future.result(60) for future in futures]


def _gloo(meeting: Path, rank: int, size: int, patience: float) -> Collective:
    return GroupCollective(gloo_group(meeting, "t", rank, size, patience))


def _make(kind: str, size: int, folder: Path, *, slot_bytes: int = 1024, patience: float = 20.0) -> Ranks:
    if kind == "alone":
        return Ranks([Alone])
    if kind == "gloo":
        return Ranks([partial(_gloo, folder / "meet", rank, size, patience) for rank in range(size)])
    arena = Arena()
    region = SharedCollective.reserve(arena, size, slot_bytes)
    memory = SharedMemory.create(arena.size)
    SharedCollective.initialize(memory, region, size)
    makers = [
        partial(SharedCollective, memory, region, rank, size, slot_bytes=slot_bytes, patience=patience)
        for rank in range(size)
    ]
    return Ranks(makers, memory)


@pytest.fixture(scope="session")
def make_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ranks]:
    def make(kind: str, size: int, **options: Any) -> Ranks:
        return _make(kind, size, tmp_path_factory.mktemp("ranks"), **options)

    return make


@pytest.fixture(scope="module", params=[("alone", 1), ("shared", 2), ("shared", 3), ("gloo", 3)], ids=str)
def ranks(request: pytest.FixtureRequest, make_ranks: Callable[..., Ranks]) -> Ranks:
    """Every implementation of the port; small slots, so that long parts go in pieces."""
    return make_ranks(*request.param)

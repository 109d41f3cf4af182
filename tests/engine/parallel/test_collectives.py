"""Every collective keeps the port's contract: sums in the order of the ranks, gathers by rank, no endless wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyopt.core.errors import EngineError
from engine.parallel.ports import Collective

if TYPE_CHECKING:
    from tests.engine.parallel.conftest import Ranks

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3)


def parts_of(size: int, shape: Sequence[int], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """A part for each rank, far apart in size, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(tuple(shape), generator=generator) * 10**rank).to(dtype) for rank in range(size)]


def summed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """In the order of the ranks; two-byte numbers in float32, rounded once."""
    wide = torch.float32 if parts[0].dtype in (torch.bfloat16, torch.float16) else parts[0].dtype
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total = total + part.to(wide)
    return total.to(parts[0].dtype)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=SHAPES, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**31), turned=st.booleans())
def test_sums_and_gathers(ranks: Ranks, shape: list[int], dtype: torch.dtype, seed: int, turned: bool) -> None:
    parts = parts_of(ranks.size, shape, dtype, seed)
    if turned:
        parts = [part.movedim(0, -1) for part in parts]  # not contiguous
    wanted = summed(parts)

    def gather_then_sum(collective: Collective) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        own = parts[collective.rank]
        return collective.all_gather(own), collective.all_reduce(own.clone())

    for gathered, total in ranks.together(gather_then_sum):
        assert torch.equal(total, wanted)
        assert total.shape == wanted.shape
        assert total.dtype is dtype
        assert len(gathered) == ranks.size
        assert all(torch.equal(got, part) for got, part in zip(gathered, parts, strict=True))


def test_a_gathered_part_is_the_callers_own(ranks: Ranks) -> None:
    """What was gathered stays as it was, whatever is exchanged afterwards."""

    def gather_and_go_on(collective: Collective) -> bool:
        kept = collective.all_gather(torch.full((300,), float(collective.rank)))
        for _ in range(5):
            collective.all_reduce(torch.full((300,), 7.0))
        return all(bool((part == rank).all()) for rank, part in enumerate(kept))

    assert all(ranks.together(gather_and_go_on))


def test_ranks_that_are_late_in_turn_do_not_overwrite_each_other(ranks: Ranks) -> None:
    """Now one, now another rank sleeps: a slot that were written too early would change a sum."""

    def work(collective: Collective) -> list[float]:
        sums = []
        for turn in range(40):
            if turn % collective.size == collective.rank:
                time.sleep(0.001)
            sums.append(float(collective.all_reduce(torch.full((10,), float(turn + collective.rank)))[0]))
        return sums

    base = sum(range(ranks.size))
    for sums in ranks.together(work):
        assert sums == [turn * ranks.size + base for turn in range(40)]


def test_ranks_know_their_place(ranks: Ranks) -> None:
    assert ranks.together(lambda collective: (collective.rank, collective.size)) == [
        (rank, ranks.size) for rank in range(ranks.size)
    ]


@pytest.mark.parametrize("kind", ["shared", "gloo"])
def test_a_rank_that_does_not_come_is_an_error_in_time(make_ranks: Callable[..., Ranks], kind: str) -> None:
    ranks = make_ranks(kind, 2, patience=0.3)
    start = time.monotonic()
    with pytest.raises(EngineError, match="Rank"):
        ranks.together(lambda collective: collective.all_reduce(torch.ones(3)), ranks=[1])
    assert time.monotonic() - start < 5


def test_a_death_wakes_who_waits(make_ranks: Callable[..., Ranks]) -> None:
    ranks = make_ranks("shared", 2)
    assert ranks.memory is not None
    timer = threading.Timer(0.1, ranks.memory.end)
    timer.start()
    start = time.monotonic()
    with pytest.raises(EngineError, match="gone"):
        ranks.together(lambda collective: collective.all_gather(torch.ones(3)), ranks=[0])
    timer.join()
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(("shape", "dtype"), [((4,), torch.float32), ((3,), torch.bfloat16)])
def test_parts_that_differ_are_an_error(
    make_ranks: Callable[..., Ranks], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    ranks = make_ranks("shared", 2)
    with pytest.raises(EngineError, match="brought"):
        ranks.together(
            lambda collective: collective.all_reduce(
                torch.ones(shape, dtype=dtype) if collective.rank else torch.ones(3)
            )
        )

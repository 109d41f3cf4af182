"""What a request's client saw, from its token times."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord, StepShare, cached_total
from energyopt.core.units import Seconds


def request(
    times: tuple[float, ...], *, arrival: float = 1.0, reason: FinishReason = FinishReason.STOP
) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        arrival=Seconds(arrival),
        end=Seconds(times[-1] if times else arrival),
        prompt_tokens=4,
        cached_tokens=0,
        output_tokens=len(times),
        finish_reason=reason,
        token_times=tuple(Seconds(time) for time in times),
    )


def test_latencies() -> None:
    record = request((1.5, 1.75, 1.75, 3.0))
    assert (record.first_token, record.ttft, record.e2e) == (1.5, 0.5, 2.0)
    assert record.gaps == (0.25, 0.0, 1.25)
    assert record.tpot == 0.5


def test_what_did_not_happen_is_none_not_zero() -> None:
    empty, single = request((), reason=FinishReason.ABORT), request((2.0,))
    assert (empty.first_token, empty.ttft, empty.tpot, empty.gaps) == (None, None, None, ())
    assert (single.ttft, single.tpot, single.gaps) == (1.0, None, ())


@given(st.lists(st.floats(0, 1e3), min_size=2))
def test_gaps_sum_to_the_time_of_decoding(times: list[float]) -> None:
    record = request(tuple(sorted(times)), arrival=0.0)
    assert len(record.gaps) == record.output_tokens - 1
    assert min(record.gaps) >= 0
    assert record.tpot is not None
    assert math.fsum(record.gaps) == pytest.approx(record.tpot * len(record.gaps), abs=1e-9)


@pytest.mark.parametrize(
    ("reason", "failed"),
    [
        (FinishReason.STOP, False),
        (FinishReason.LENGTH, False),
        (FinishReason.ABORT, True),
        (FinishReason.ERROR, True),
    ],
)
def test_which_endings_are_failures(reason: FinishReason, failed: bool) -> None:
    assert request((2.0,), reason=reason).failed is failed


def test_a_step_sums_its_shares_and_stays_as_it_is() -> None:
    shares = (StepShare("a", Phase.PREFILL, 12, 0, {"device": 16}), StepShare("b", Phase.DECODE, 1, 40))
    step = StepRecord(Seconds(0.0), Seconds(0.1), ("cpu",), shares)
    assert step.computed_tokens == 13
    assert StepRecord(Seconds(0.0), Seconds(0.1), ("cpu",), ()).computed_tokens == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.start = Seconds(1.0)  # type: ignore[misc]


def test_the_cache_of_several_requests_is_unknown_if_one_does_not_tell() -> None:
    def request(prompt: int, cached: int | None) -> RequestRecord:
        return RequestRecord("r", Seconds(0), Seconds(1), prompt, cached, 1, FinishReason.STOP)

    assert cached_total([request(10, 4), request(10, 0)]) == 4
    assert cached_total([request(10, 4), request(0, None)]) == 4, "one that failed at once had no prompt to tell of"
    assert cached_total([request(10, 4), request(10, None)]) is None

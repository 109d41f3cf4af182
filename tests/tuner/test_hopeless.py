"""A run ends early only when no rest of its window could save it."""

from __future__ import annotations

import pytest

from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds
from tuner.counting import Window
from tuner.hopeless import LEAST, hopeless

WINDOW = Window(Seconds(0.0), Seconds(100.0))


def requests(ttft: float, count: int = 20) -> list[RequestRecord]:
    times = (Seconds(ttft),)
    return [
        RequestRecord(f"r{n}", Seconds(0.0), Seconds(ttft), 10, 0, 1, FinishReason.LENGTH, times) for n in range(count)
    ]


def test_three_times_the_target_is_beyond_hope() -> None:
    found = hopeless(WINDOW, [Slo.parse("ttft:p90<1s")], requests(3.5))
    assert found == "ttft:p90<1000ms is missed by 250% over 20 samples"


@pytest.mark.parametrize(("ttft", "count"), [(0.5, 20), (2.9, 20), (9.0, LEAST - 1), (9.0, 0)])
def test_what_may_still_be_saved_goes_on(ttft: float, count: int) -> None:
    assert hopeless(WINDOW, [Slo.parse("ttft:p90<1s"), Slo.parse("goodput>1000")], requests(ttft, count)) is None

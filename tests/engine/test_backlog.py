"""The estimate that a refused client is given."""

from __future__ import annotations

import pytest

from energyopt.core.units import Seconds
from engine.backlog import Turnover


def test_nothing_known_means_a_second() -> None:
    turnover = Turnover()
    assert turnover.retry_after() == 1.0
    turnover.ended(Seconds(5.0))
    assert turnover.retry_after() == 1.0


def test_it_is_the_mean_time_between_the_last_ends() -> None:
    turnover = Turnover(window=4)
    for at in (0.0, 100.0, 101.0, 103.0, 106.0):
        turnover.ended(Seconds(at))
    assert turnover.retry_after() == pytest.approx(2.0)


@pytest.mark.parametrize(("interval", "answer"), [(0.0, 0.1), (1e-4, 0.1), (3600.0, 60.0)])
def test_it_stays_within_reason(interval: float, answer: float) -> None:
    turnover = Turnover()
    for number in range(3):
        turnover.ended(Seconds(number * interval))
    assert turnover.retry_after() == answer

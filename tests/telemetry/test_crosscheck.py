"""The comparison of counter and integrated power: what it publishes and when it condemns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.crosscheck import HIGHEST, JUDGED, LOWEST, CrossCheck


def fed(ratio: float, seconds: float, watts: float = 300.0, step: float = 0.1) -> CrossCheck:
    check = CrossCheck()
    for _ in range(round(seconds / step)):
        check.add(ratio * watts * step, watts * step, step)
    return check


def test_nothing_is_known_before_a_joule() -> None:
    assert CrossCheck().ratio is None
    assert fed(1.0, 0.2, watts=1.0).ratio is None


@given(ratio=st.floats(0.01, 100.0), watts=st.floats(10.0, 2000.0))
def test_verdict_follows_the_bounds(ratio: float, watts: float) -> None:
    check = fed(ratio, JUDGED + 1, watts)
    assert check.ratio == pytest.approx(ratio)
    if not LOWEST * 0.999 < ratio < LOWEST * 1.001 and not HIGHEST * 0.999 < ratio < HIGHEST * 1.001:
        assert check.distrusted == (not LOWEST <= ratio <= HIGHEST)


def test_a_verdict_needs_its_time() -> None:
    assert not fed(9.0, JUDGED - 0.5).distrusted


def test_a_fault_that_comes_late_shows_in_the_ratio() -> None:
    check = fed(1.0, 7200.0, step=1.0)
    for _ in range(1200):
        check.add(100.0, 300.0, 1.0)
    assert check.ratio is not None
    assert check.ratio < 0.65


def test_only_the_turn_is_reported() -> None:
    check = CrossCheck()
    assert sum(check.add(900.0, 100.0, 0.5) for _ in range(100)) == 1

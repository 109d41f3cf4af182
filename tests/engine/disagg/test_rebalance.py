"""How many engines prefill: the split that carries most, or takes fewest watts, and no flapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.rate_match import flow_of
from engine.disagg.rebalance import PoolLoad, Rebalancer, Rules, wanted_split

RULES = Rules(gain=0.15, windows=3, rest=2, headroom=1.2)


def loads(prefills: int, decodes: int, demand: float, rate: float, other: float) -> tuple[PoolLoad, PoolLoad]:
    """Both pools when ``demand`` requests per second come, at these rates of one engine."""
    flow = min(demand, prefills * rate, decodes * other)
    return (
        PoolLoad(prefills, flow, flow / (prefills * rate), flow < demand and prefills * rate <= decodes * other),
        PoolLoad(decodes, flow, flow / (decodes * other), flow < demand and decodes * other < prefills * rate),
    )


@given(
    total=st.integers(3, 8),
    prefills=st.integers(1, 7),
    rate=st.floats(0.1, 20),
    other=st.floats(0.1, 20),
    demand=st.floats(0.5, 200),
)
def test_the_split_carries_at_least_what_the_present_one_does(
    total: int, prefills: int, rate: float, other: float, demand: float
) -> None:
    prefills = min(prefills, total - 1)
    prefill, decode = loads(prefills, total - prefills, demand, rate, other)
    wanted = wanted_split(prefill, decode, RULES)
    if wanted is None:
        return
    first, second = prefill.rate, decode.rate
    assert first is not None
    assert second is not None
    assert 1 <= wanted < total
    carried = flow_of(first, wanted, second, total - wanted)
    assert carried >= flow_of(first, prefills, second, total - prefills) * 0.999
    if prefill.waiting or decode.waiting:
        best = max(flow_of(first, count, second, total - count) for count in range(1, total))
        assert carried * (1 + RULES.gain) >= best * 0.999


def test_long_prompts_move_an_engine_to_the_prefill_pool_and_short_ones_back() -> None:
    """1P2D becomes 2P1D when prefill is what waits, then returns when decode is; each only once it is wanted thrice."""
    rebalancer, prefills, changes = Rebalancer(RULES), 1, []
    for window in range(24):
        rate, other = (1.0, 4.0) if window < 12 else (8.0, 1.0)
        wanted = rebalancer.decide(*loads(prefills, 3 - prefills, 10.0, rate, other))
        if wanted is not None:
            prefills = wanted
            changes.append((window, wanted))
    assert changes == [(2, 2), (14, 1)]


def test_a_wish_that_comes_and_goes_changes_nothing() -> None:
    rebalancer = Rebalancer(RULES)
    for window in range(20):
        rate, other = (1.0, 4.0) if window % 3 else (2.0, 1.0)
        assert rebalancer.decide(*loads(1, 2, 10.0, rate, other)) is None


def test_a_small_gain_is_not_worth_a_change() -> None:
    prefill, decode = loads(2, 2, 10.0, 1.0, 0.95)
    assert wanted_split(prefill, decode, RULES) == 2


def test_watts_decide_between_splits_that_carry_the_demand() -> None:
    """Prefill engines that idle dearly go to the other pool; idle watts count, not only those of work."""
    prefill = PoolLoad(3, 1.0, 0.1, busy_watts=700.0, idle_watts=300.0)
    decode = PoolLoad(1, 1.0, 0.4, busy_watts=300.0, idle_watts=60.0)
    assert wanted_split(prefill, decode, RULES) == 1
    unmeasured = PoolLoad(3, 1.0, 0.1)
    assert wanted_split(unmeasured, PoolLoad(1, 1.0, 0.4), RULES) == 3, "without watts nothing is gained"


@pytest.mark.parametrize("busy", [0.0, 0.01])
def test_an_idle_pool_says_nothing(busy: float) -> None:
    assert wanted_split(PoolLoad(1, 0.0, busy), PoolLoad(2, 1.0, 0.5), RULES) is None
    assert Rebalancer(RULES).decide(PoolLoad(1, 0.0, busy), PoolLoad(2, 0.0, busy)) is None

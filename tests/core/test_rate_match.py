"""Rate matching against a search over all pairs, and fleet power that counts devices, not request time lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.rate_match import DECODE_YIELD, PREFILL_YIELD, PoolRate, match_pools

rates = st.floats(0.05, 50)
sizes = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=150, deadline=None)
@given(prefill_rate=rates, decode_rate=rates, p=sizes, d=sizes, devices=st.integers(2, 64))
def test_no_pair_of_pools_carries_more(prefill_rate: float, decode_rate: float, p: int, d: int, devices: int) -> None:
    prefill, decode = PoolRate(prefill_rate, p, 600, 70), PoolRate(decode_rate, d, 400, 70)
    found = match_pools(prefill, decode, devices)
    pairs = [(a, b) for a in range(1, devices + 1) for b in range(1, devices + 1) if a * p + b * d <= devices]
    if not pairs:
        assert found is None
        return
    assert found is not None
    best = max(min(PREFILL_YIELD * a * prefill_rate, DECODE_YIELD * b * decode_rate) for a, b in pairs)
    assert found.flow == pytest.approx(best)
    assert found.prefill * p + found.decode * d <= devices
    assert 70 * devices <= found.watts <= 600 * devices


def test_power_weighs_a_phase_by_its_devices_and_counts_idle_ones() -> None:
    prefill, decode = PoolRate(9.0, 4, 700, 100), PoolRate(1.0, 2, 300, 100)
    found = match_pools(prefill, decode, 11)
    assert found is not None
    assert (found.prefill, found.decode) == (1, 3)
    assert found.flow == pytest.approx(3 * DECODE_YIELD)
    by_hand = 4 * (100 + found.flow / 9.0 * 600) + 6 * (100 + DECODE_YIELD * 200) + 1 * 100
    assert found.watts == pytest.approx(by_hand)

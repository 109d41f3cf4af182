"""Recompute or load: what is learned, and what is chosen, against trying every choice."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.kv.chooser import LoadAlways, LoadIfCheaper
from engine.kv.linear import LinearCost

TOKENS, BYTES = 16, 1000


def _line(fixed: float, slope: float, *amounts: float) -> LinearCost:
    cost = LinearCost()
    for amount in amounts or (1000.0, 5000.0, 20_000.0, 3000.0):
        cost.observe(amount, fixed + slope * amount)
    return cost


def test_a_line_is_learned_from_examples() -> None:
    cost = _line(0.5, 0.01)
    assert cost.of(100) == pytest.approx(1.5)
    assert cost.slope == pytest.approx(0.01)


def test_too_few_examples_say_nothing_and_equal_amounts_say_only_their_ratio() -> None:
    assert _line(0.5, 0.01, 100.0, 200.0).line is None
    alike = _line(1.0, 0.01, 100.0, 100.0, 100.0)
    assert alike.of(0) == 0
    assert alike.slope == pytest.approx(0.02)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e3)), min_size=3, max_size=40))
def test_no_part_of_a_line_is_negative(examples: list[tuple[float, float]]) -> None:
    cost = LinearCost()
    for amount, seconds in examples:
        cost.observe(amount, seconds)
    if cost.line is not None:
        assert min(cost.line) >= 0


def test_the_newest_examples_count_most() -> None:
    cost = _line(0.0, 1.0, *(float(at % 7 + 1) for at in range(50)))
    for at in range(200):
        cost.observe(float(at % 7 + 1), 3.0 * (at % 7 + 1))
    assert cost.slope == pytest.approx(3.0, rel=0.02)


def _chooser(per_token: float, **tiers: tuple[float, float]) -> LoadIfCheaper:
    loads = {name: _line(*line) for name, line in tiers.items()}
    return LoadIfCheaper(_line(0.0, per_token), loads, block_tokens=TOKENS, block_bytes=BYTES)


def test_a_fast_tier_is_loaded_and_a_slow_one_is_not() -> None:
    chooser = _chooser(1e-3, host=(0.0, 1e-6), shared=(0.0, 1e-3))
    assert chooser.worth_loading(["host"] * 10) == 10
    assert chooser.worth_loading(["shared"] * 10) == 0
    assert chooser.worth_loading(["host"] * 6 + ["shared"] * 4) == 6


def test_a_fixed_cost_pays_only_for_many_blocks() -> None:
    chooser = _chooser(1e-3, disk=(0.1, 1e-6))
    assert chooser.worth_loading(["disk"] * 2) == 0
    assert chooser.worth_loading(["disk"] * 50) == 50


def test_what_is_not_known_is_loaded_and_so_learned() -> None:
    assert _chooser(1e-3).worth_loading(["host"] * 3) == 3
    assert LoadIfCheaper(LinearCost(), {}, block_tokens=1, block_bytes=1).worth_loading(["host"] * 3) == 3
    assert LoadAlways().worth_loading(["host"] * 3) == 3
    assert _chooser(1e-3).worth_loading([]) == 0


def test_a_refused_tier_is_tried_again_now_and_then() -> None:
    chooser = _chooser(1e-3, shared=(0.0, 1e-3))
    choices = [chooser.worth_loading(["shared"] * 4) for _ in range(128)]
    assert choices.count(4) == 4


def test_each_tier_is_tried_again_though_one_refusal_always_follows_the_other() -> None:
    chooser = _chooser(1e-3, host=(0.0, 1e-3), shared=(0.0, 1e-3))
    taken = [(chooser.worth(["host", "shared"], 32), chooser.worth(["host"], 16)) for _ in range(96)]
    assert sum(both for both, _ in taken) >= 2
    assert sum(one for _, one in taken) >= 2


@given(
    st.lists(st.sampled_from(["host", "disk", "shared"]), min_size=1, max_size=12),
    st.floats(1e-6, 1e-2),
    st.tuples(*[st.tuples(st.floats(0, 0.1), st.floats(1e-9, 1e-4))] * 3),
)
def test_the_choice_is_the_best_of_all(
    tiers: list[str], per_token: float, lines: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
) -> None:
    chooser = _chooser(per_token, host=lines[0], disk=lines[1], shared=lines[2])
    costs = [chooser._cost(tiers, cut) for cut in range(len(tiers) + 1)]
    known = [cost for cost in costs if cost is not None]
    assume(len(known) == len(costs))
    chosen = costs[chooser.worth_loading(tiers)]
    assert chosen == pytest.approx(min(known))


def test_blocks_of_several_groups_are_weighed_together() -> None:
    chooser = _chooser(1e-3, host=(0.0, 1e-6), shared=(0.0, 1e-4))
    assert chooser.worth(["host"] * 9, tokens=16)
    assert not chooser.worth(["host"] * 8 + ["shared"], tokens=16)
    assert chooser.worth(["host"] * 8 + ["shared"], tokens=160)
    assert chooser.worth(["disk"], tokens=1), "what is not known is loaded and so learned"
    assert LoadAlways().worth(["shared"] * 99, tokens=1)
    assert [chooser.worth(["shared"], 1) for _ in range(96)].count(True) == 3, "tried again now and then"

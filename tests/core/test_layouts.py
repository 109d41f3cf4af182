"""The one set of layout rules: what is refused, with which words, and that what is suggested is allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.config import ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.layouts import RULES, broken_rule, check_layout, describe_layout


@dataclass(frozen=True)
class Model:
    """Dimensions as a rule asks for them; SmolLM2-135M's by default."""

    heads: int = 9
    kv_heads: int = 3
    ffn: int = 1536
    experts: int = 0
    moe_ffn: int = 0
    layers: int = 30
    mla: bool = False


@pytest.mark.parametrize("sizes", [{}, {"tp": 3}, {"pp": 2}, {"pp": 3, "tp": 3}, {"pp": 30}])
def test_what_the_demo_model_allows(sizes: dict[str, int]) -> None:
    check_layout(Model(), ParallelLayout(**sizes))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"tp": 2}, "tp=2 is not allowed: attention heads divide over tp, and the model has 9 heads.*; tp may be 1, 3"),
        ({"tp": 9}, "ffn divides over tp.*tp may be 1, 3"),
        ({"pp": 4}, "layers divide over pp.*30 layers.*pp may be 1, 2, 3, 5"),
        ({"tp": 3, "dcp": 3}, "tp=3 dcp=3 is not allowed: dcp only undoes copies.*dcp may be 1"),
        ({"dp": 2}, "attention replicas .dp. only where experts are spread.*dp may be 1"),
        ({"ep": 2}, "experts divide over ep = tp x dp.*no experts; ep may be 1"),
    ],
)
def test_a_refusal_names_the_rule_and_what_is_allowed(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_layout(Model(), ParallelLayout(**sizes))


@given(
    st.builds(
        Model,
        heads=st.sampled_from([1, 4, 6, 8, 9]),
        kv_heads=st.sampled_from([1, 2, 3, 4]),
        experts=st.sampled_from([0, 4, 6]),
        moe_ffn=st.sampled_from([0, 96]),
        mla=st.booleans(),
    ),
    st.builds(ParallelLayout, **{name: st.integers(1, 6) for name in ParallelLayout.model_fields}),
)
def test_what_is_suggested_is_allowed_and_what_is_allowed_breaks_no_rule(model: Model, layout: ParallelLayout) -> None:
    broken = broken_rule(model, layout)
    assert (broken is None) == all(check(model, layout) for check in RULES.values())
    if broken is None:
        check_layout(model, layout)
        return
    with pytest.raises(ConfigError) as refusal:
        check_layout(model, layout)
    assert broken in refusal.value.message
    suggested = re.search(r"; (\w+) may be ([\d, ]+)\.$", refusal.value.message)
    for value in suggested[2].split(", ") if suggested else ():
        assert suggested is not None
        assert broken_rule(model, layout.model_copy(update={suggested[1]: int(value)})) is None


def test_a_layout_shows_what_is_not_one() -> None:
    assert describe_layout(ParallelLayout()) == "tp=1"
    assert describe_layout(ParallelLayout(tp=4, dcp=2)) == "tp=4 dcp=2"

"""A part of a configuration and its word are the same thing, and no other word is understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.config import ParallelLayout, SpeculativeConfig, TierConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes
from tuner.knobs import (
    KINDS,
    kind_of,
    parse_layout,
    parse_speculation,
    parse_tiers,
    spell_layout,
    spell_speculation,
    spell_tiers,
)

sizes = st.integers(1, 4096)
layouts = st.builds(ParallelLayout, tp=sizes, pp=sizes, ep=sizes, dcp=sizes, dp=sizes)
amounts = st.integers(1, 2**44).map(Bytes)


@given(layouts)
def test_a_layout_survives_its_word(layout: ParallelLayout) -> None:
    assert ParallelLayout.model_validate(parse_layout(spell_layout(layout.model_dump()))) == layout


@given(amounts, amounts, st.sampled_from([None, "/data/cache", "kv"]))
def test_tiers_survive_their_word(host: Bytes, disk: Bytes, path: str | None) -> None:
    tiers = (TierConfig(kind="host", bytes_per_rank=host), TierConfig(kind="disk", bytes_per_host=disk, path=path))
    word = spell_tiers([tier.model_dump() for tier in tiers])
    assert tuple(TierConfig.model_validate(tier) for tier in parse_tiers(word)) == tiers


@given(st.integers(1, 16), st.integers(1, 16), st.integers(0, 15), st.booleans())
def test_speculation_survives_its_word(depth: int, least: int, more: int, adaptive: bool) -> None:
    part = SpeculativeConfig(
        num_speculative_tokens=depth,
        prompt_lookup_min=least,
        prompt_lookup_max=min(16, least + more),
        adaptive=adaptive,
    )
    assert parse_speculation(spell_speculation(part.model_dump())) == part.model_dump()
    assert parse_speculation(spell_speculation(None)) is None


@pytest.mark.parametrize("word", ["", "ngram", "ngram:0", "ngram:99", "draft:4", "ngram:4:4-2", None, 4])
def test_other_words_are_no_speculation(word: str | int | None) -> None:
    with pytest.raises(ConfigError):
        parse_speculation(word)


@pytest.mark.parametrize("word", ["", "tp", "tp0", "tp2-tp2", "xx2", "tp2,pp2", None, 4, True, "tp9999999"])
def test_other_words_are_no_layout(word: str | int | None) -> None:
    with pytest.raises(ConfigError, match="is no layout"):
        parse_layout(word)


@pytest.mark.parametrize("word", ["", "host", "host:", "host:16 GiB", None, "host:1GiB+", "host:1GiB@"])
def test_other_words_are_no_tiers(word: str | None) -> None:
    with pytest.raises(ConfigError, match="is no list of tiers"):
        parse_tiers(word)


@pytest.mark.parametrize("word", ["tape:1GiB", "host:0GiB", "host:1GiB@/x", "shared:1GiB", "host:1parsec"])
def test_tiers_that_cannot_be_are_refused_by_their_own_rules(word: str) -> None:
    with pytest.raises(ConfigError):
        parse_tiers(word)


def test_each_kind_understands_its_own_example() -> None:
    for path, kind in KINDS.items():
        assert kind_of(f"prefill.{path}") is kind
        assert kind.parse(kind.form)
    assert kind_of("decode.engine.threads") is None

"""Scalars come back as they went, in JSON that anyone can parse."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.study import Value
from energyopt.store.codec import bounded, clean, clean_values, dump_values, load_texts, load_values

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT


def never(word: str) -> Value:
    raise AssertionError(f"{word} is no JSON")


@given(st.dictionaries(ANY_TEXT, VALUES))
def test_clean_values_round_trip_exactly(values: dict[str, Value]) -> None:
    kept = clean_values(values)
    text = dump_values(kept)
    json.loads(text, parse_constant=never)
    assert repr(load_values(text)) == repr(kept)


@given(ANY_TEXT)
def test_clean_text_is_utf8_without_nul_and_good_text_stays(text: str) -> None:
    cleaned = clean(text)
    assert b"\0" not in cleaned.encode()
    assert len(cleaned) == len(text)
    assert clean(cleaned) == cleaned
    assert all(new == old or old == "\0" or 0xD800 <= ord(old) < 0xE000 for new, old in zip(cleaned, text, strict=True))


def test_nan_survives() -> None:
    assert str(load_values(dump_values({"a": float("nan")}))["a"]) == "nan"


@pytest.mark.parametrize("text", ["[]", "1", "{", '{"a": []}', '{"a": {"int": 1}}', '{"a": {"float": "x"}}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (json's, float's and our own)
        load_values(text)


def test_texts_are_texts() -> None:
    assert load_texts(dump_values({"a": "b"})) == {"a": "b"}
    with pytest.raises(ValueError, match="is not text"):
        load_texts('{"a": 1}')


def test_numbers_stay_in_what_a_database_compares() -> None:
    assert [bounded(number) for number in (-1, 0, 5, 2**31, 10**30)] == [0, 0, 5, 2**31 - 1, 2**31 - 1]

"""A prompt with named blocks reads as the tuple of its tokens does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.simulator.prompts import NamedPrompt

PLACES = st.one_of(st.none(), st.integers(-20, 20))


@given(st.integers(0, 8), st.lists(st.integers(1, 9), max_size=6), PLACES, PLACES, st.sampled_from([None, 1, 2, -1]))
def test_it_is_the_tuple_that_it_stands_for(
    named: int, rest: list[int], start: int | None, stop: int | None, step: int | None
) -> None:
    whole, prompt = (0,) * named + tuple(rest), NamedPrompt(named, tuple(rest))
    assert len(prompt) == len(whole)
    assert tuple(prompt) == whole
    assert prompt[start:stop:step] == whole[start:stop:step]
    assert [prompt[place] for place in range(-len(whole), len(whole))] == [*whole, *whole]


@pytest.mark.parametrize("place", [3, -4])
def test_there_is_nothing_beyond_its_ends(place: int) -> None:
    with pytest.raises(IndexError, match="of 3"):
        NamedPrompt(2, (7,))[place]

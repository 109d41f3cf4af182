"""Another engine's hashes become the names that a prompt's own tokens have here."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.routing.foreign import ForeignNames
from engine.routing.names import Prompt, Scheme


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=60), st.integers(1, 5), st.lists(st.integers(1, 4)))
def test_a_chain_told_in_pieces_has_the_names_of_the_whole(tokens: list[int], size: int, pieces: list[int]) -> None:
    known, told, parent = ForeignNames(size, 1000), list[bytes](), None
    blocks = len(tokens) // size
    while len(told) < blocks:
        count = min(pieces.pop() if pieces else 1, blocks - len(told))
        part = range(len(told), len(told) + count)
        told += known.stored(list(part), parent, tokens[part.start * size : part.stop * size])
        parent = part.stop - 1
    assert told == Prompt(ids=tokens).blocks(Scheme(size, size))
    assert known.of(range(blocks)) == told


def test_what_does_not_go_together_has_no_names() -> None:
    known = ForeignNames(2, 2)
    assert known.stored([b"b"], b"unheard of", [1, 2]) == []
    assert known.stored([b"a", b"b"], None, [1, 2, 3]) == []
    assert known.of([b"a", b"b"]) == []
    first, second, third = known.stored([b"a", b"b", b"c"], None, [1, 2, 3, 4, 5, 6])
    assert known.of([b"a", b"b", b"c"]) == [second, third], "the oldest is forgotten"
    assert first not in (second, third)

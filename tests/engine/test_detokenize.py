"""Text pieces join to the whole text, and stop strings cut it exactly, however tokens split it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.detokenize import MAX_HELD_TOKENS, Detokenizer, IncrementalDecoder, StopScanner
from engine.fake import FakeTokenizer

TEXT = st.text(st.sampled_from("ab é€😀\n \u0301"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("abé😀 "), min_size=1, max_size=4), max_size=3)


class PieceTokenizer(FakeTokenizer):
    """Like SentencePiece: pieces of words with a mark for the space, dropped at the start of a text."""

    PIECES = ("▁the", "▁cat", "s", "▁", "at")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(self.PIECES[token] for token in ids).replace("▁", " ").removeprefix(" ")


def pieces(decoder: IncrementalDecoder | Detokenizer, ids: Sequence[int]) -> list[str]:
    return [*(decoder.add(token) for token in ids), decoder.flush()]


@given(TEXT)
def test_pieces_join_to_the_text(text: str) -> None:
    tokenizer = FakeTokenizer()
    assert "".join(pieces(IncrementalDecoder(tokenizer), tokenizer.encode(text))) == text


@given(TEXT, TEXT)
def test_a_prompt_before_the_text_changes_nothing(prompt: str, text: str) -> None:
    tokenizer = FakeTokenizer()
    decoder = IncrementalDecoder(tokenizer, tokenizer.encode(prompt))
    assert "".join(pieces(decoder, tokenizer.encode(text))) == text


@given(TEXT, st.lists(st.integers(0, 259), max_size=6))
def test_a_prompt_that_ends_within_a_character_changes_nothing(text: str, prompt: list[int]) -> None:
    tokenizer = FakeTokenizer()
    decoder = IncrementalDecoder(tokenizer, prompt)
    assert "".join(pieces(decoder, tokenizer.encode(text))) == text


@given(TEXT)
def test_nothing_incomplete_is_ever_released(text: str) -> None:
    tokenizer = FakeTokenizer()
    decoder, seen = IncrementalDecoder(tokenizer), ""
    for token in tokenizer.encode(text):
        seen += decoder.add(token)
        assert text.startswith(seen)


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), min_size=1, max_size=10))
def test_pieces_of_a_tokenizer_with_context_rules(ids: list[int], prompt: list[int]) -> None:
    tokenizer = PieceTokenizer()
    assert "".join(pieces(IncrementalDecoder(tokenizer), ids)) == tokenizer.decode(ids)
    whole = tokenizer.decode(prompt) + "".join(pieces(IncrementalDecoder(tokenizer, prompt), ids))
    assume(tokenizer.decode(prompt))
    assert whole == tokenizer.decode([*prompt, *ids])


def test_bytes_that_are_no_characters_are_not_held_for_ever() -> None:
    decoder = IncrementalDecoder(FakeTokenizer())
    released = [decoder.add(0xFF) for _ in range(MAX_HELD_TOKENS)]
    assert "".join(released) == "\ufffd" * MAX_HELD_TOKENS


def test_a_character_cut_off_by_the_end_is_replaced() -> None:
    decoder = IncrementalDecoder(FakeTokenizer())
    assert [decoder.add(byte) for byte in "😀".encode()[:3]] == ["", "", ""]
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_special_tokens_have_no_text() -> None:
    tokenizer = FakeTokenizer()
    assert pieces(IncrementalDecoder(tokenizer), tokenizer.encode("a<|start|>b<|end|>")) == ["a", "", "b", "", ""]


@given(TEXT, STOPS)
def test_stop_strings_cut_at_their_first_appearance(text: str, stops: list[str]) -> None:
    tokenizer = FakeTokenizer()
    detokenizer, seen, steps = Detokenizer(tokenizer, stops=stops), "", 0
    for token in tokenizer.encode(text):
        seen += detokenizer.add(token)
        steps += 1
        if detokenizer.stopped:
            break
    seen += detokenizer.flush()
    read = tokenizer.decode(tokenizer.encode(text)[:steps])
    found = [read.find(stop) for stop in stops if stop in read]
    assert detokenizer.stopped == bool(found)
    assert seen == (read[: min(found)] if found else text)
    # It stops with the very token that completes a stop string.
    before = tokenizer.decode(tokenizer.encode(text)[: max(steps - 1, 0)])
    assert not any(stop in before for stop in stops)


@given(TEXT, STOPS)
def test_no_part_of_a_stop_string_is_released_early(text: str, stops: list[str]) -> None:
    scanner, seen = StopScanner(stops), ""
    # Fed one character at a time, the stop string that is complete first wins, and of several the longest.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    limit = min(ends)[1] if ends else len(text)
    for character in text:
        seen += scanner.feed(character)
        assert text[:limit].startswith(seen)
    assert seen + scanner.flush() == text[:limit]


@pytest.mark.parametrize(
    ("fed", "stops", "released"),
    [
        (["hel", "lo"], ["lo"], ["he", "l"]),
        (["a", "a", "b"], ["aab"], ["", "", ""]),
        (["a", "a", "a", "b"], ["aab"], ["", "", "a", ""]),
        (["x\n", "\n"], ["\n\n"], ["x", ""]),
        (["abc"], ["c", "b"], ["a"]),
        (["ab"], [], ["ab"]),
    ],
)
def test_held_text(fed: list[str], stops: list[str], released: list[str]) -> None:
    scanner = StopScanner(stops)
    assert [scanner.feed(text) for text in fed] == released


def test_after_a_stop_nothing_more_is_released() -> None:
    detokenizer = Detokenizer(FakeTokenizer(), stops=["b"])
    assert [detokenizer.add(token) for token in b"abc"] == ["a", "", ""]
    assert detokenizer.flush() == ""


def test_the_rest_of_a_character_that_the_prompt_began_is_not_lost() -> None:
    first, second = "é".encode()
    decoder = IncrementalDecoder(FakeTokenizer(), [ord("x"), first])
    assert "".join(pieces(decoder, [second, ord("y")])) == "\ufffdy"

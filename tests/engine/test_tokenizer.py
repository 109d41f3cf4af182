"""The tokenizer: llama.cpp's ids on recorded strings, round trips, markers, and files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from energyopt.core.errors import ModelFormatError, UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.models import resolve_model
from engine.tokenizer import BpeTokenizer, from_directory, from_gguf

LETTER = st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF) | st.sampled_from("\n\r\t\0")
TEXT = st.text(LETTER, max_size=40)
"""The demo's vocabulary lacks some bytes: F1 and F2, which begin planes 4 to 11, and a few control characters."""


@pytest.fixture(scope="module")
def metadata() -> dict[str, object]:
    return GgufFile(resolve_model("smollm2-135m")).metadata


@pytest.fixture(scope="module")
def smollm(metadata: dict[str, object]) -> BpeTokenizer:
    return from_gguf(metadata, Path("demo.gguf"))


def test_ids_equal_those_of_llama_cpp(smollm: BpeTokenizer) -> None:
    path = Path(__file__).parent / "golden" / "tokens_llama_cpp.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cases"]
    assert len(cases) >= 500
    wrong = [case["text"] for case in cases if smollm.encode(case["text"]) != case["ids"]]
    assert wrong == []


@given(text=TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back(smollm: BpeTokenizer, text: str) -> None:
    for special in (True, False):
        ids = smollm.encode(text, special=special)
        assert smollm.decode(ids, skip_special=False) == text
        assert all(0 <= token < smollm.vocab_size for token in ids)


def test_as_a_document_it_gives_the_same_ids(smollm: BpeTokenizer) -> None:
    other = Tokenizer.from_str(smollm.document())
    for text in ("Hello, world: 123", "<|im_start|>user\n", "naïve Grüße 😀"):
        assert other.encode(text, add_special_tokens=False).ids == smollm.encode(text)


@given(text=TEXT | st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_lower_bound_is_one(smollm: BpeTokenizer, text: str) -> None:
    """Also for bytes that the vocabulary lacks, which vanish."""
    assert smollm.at_least(text) <= min(len(smollm.encode(text, special=special)) for special in (True, False))


def test_the_lower_bound_is_worth_something(smollm: BpeTokenizer) -> None:
    assert smollm.at_least("word " * 1_000_000) > 10_000
    assert smollm.at_least("<|im_start|>") == 1


def test_nothing_is_said_where_text_may_vanish() -> None:
    alphabet = {sign: i for i, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(alphabet, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert BpeTokenizer(plain, frozenset(), frozenset()).at_least("abc") == 3
    plain.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert BpeTokenizer(plain, frozenset(), frozenset()).at_least(" " * 99 + "<mask>") == 0
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    assert BpeTokenizer(words, frozenset(), frozenset()).at_least("b " * 99) == 0


def test_markers_are_single_ids_only_when_special(smollm: BpeTokenizer) -> None:
    assert smollm.encode("<|im_start|>") == [1]
    plain = smollm.encode("a<|im_start|>b", special=False)
    assert 1 not in plain
    assert len(plain) > 3
    assert smollm.decode([1, 504, 2]) == smollm.decode([504])
    assert smollm.decode([1, 504, 2], skip_special=False) == "<|im_start|>The<|im_end|>"
    assert smollm.token_text(2) == "<|im_end|>"
    assert smollm.token_text(504) == "The"


def test_what_ends_a_text(smollm: BpeTokenizer) -> None:
    assert smollm.eos_ids == {0, 2}  # <|endoftext|> and <|im_end|>
    assert smollm.vocab_size == 49152


def test_half_a_character_is_a_replacement_sign(smollm: BpeTokenizer) -> None:
    ids = smollm.encode("😀")
    assert len(ids) > 1
    assert smollm.decode(ids[:-1]).endswith("\ufffd")
    assert smollm.decode(ids) == "😀"


def small_metadata(**changes: object) -> dict[str, object]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "he", "<s>", "<tool>"]
    found: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.token_type": [1] * (len(alphabet) + 1) + [3, 4],
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }
    return found | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    tokenizer = from_gguf(small_metadata(), Path("x.gguf"))
    assert tokenizer.encode("he<s><tool>") == [256, 257, 258]
    assert tokenizer.decode([256, 257, 258]) == "he<tool>"
    assert tokenizer.eos_ids == {257}
    assert tokenizer.encode("<s><tool>", special=False)[-1] == 258


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "llama"}, UnsupportedModelError, "supported is 'gpt2'"),
        ({"pre": "martian"}, UnsupportedModelError, "smollm, gpt-2, llama-bpe"),
        ({"tokens": None}, ModelFormatError, "tokenizer.ggml.tokens"),
        ({"tokens": [1, 2]}, ModelFormatError, "tokenizer.ggml.tokens"),
        ({"merges": ["he"]}, ModelFormatError, "'he' is not two tokens"),
        ({"merges": ["h zz"]}, ModelFormatError, "merges do not fit"),
        ({"eos_token_id": 10**6, "token_type": "?"}, None, ""),
    ],
)
def test_metadata_that_is_wrong(changes: dict[str, object], error: type[Exception] | None, words: str) -> None:
    if error is None:
        assert from_gguf(small_metadata(**changes), Path("x.gguf")).eos_ids == frozenset()
        return
    with pytest.raises(error, match=words):
        from_gguf(small_metadata(**changes), Path("x.gguf"))


def save_directory(directory: Path, **files: object) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|eot_id|>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def test_a_directory_ends_with_what_any_of_its_files_names(tmp_path: Path) -> None:
    save_directory(tmp_path, generation_config={"eos_token_id": [7, 9]}, config={"eos_token_id": 8})
    tokenizer = from_directory(tmp_path)
    assert tokenizer.eos_ids == {7, 8, 9, 256}
    assert tokenizer.encode("<|eot_id|>") == [256]
    assert tokenizer.decode(tokenizer.encode("grüße <|eot_id|>")) == "grüße "


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', "\x00\xff"])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json"):
        from_directory(tmp_path)


def test_a_missing_tokenizer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"has no tokenizer\.json"):
        from_directory(tmp_path)

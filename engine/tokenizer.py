"""Text to tokens and back, from a GGUF file's vocabulary or a Hugging Face ``tokenizer.json``.

The arithmetic is the ``tokenizers`` library's; what is ours is how a GGUF vocabulary is told to it (llama.cpp's
pre-tokenizers by name).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from energyopt.core.errors import ModelFormatError, UnsupportedModelError

from .files import read_json, shown

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "smollm": (r"\p{N}", _GPT2),
    "gpt-2": (_GPT2,),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),),
}
"""Splits of llama.cpp's pre-tokenizers, applied in turn; each match stands alone."""

_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
_WORD_SIGN = "\u2581"

_CONTROL, _USER_DEFINED = 3, 4
_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "</s>", "<|eom_id|>")
"""Names of end tokens that a file may carry without saying that they end a turn."""


class BpeTokenizer:
    """Satisfies ``engine.ports.Tokenizer``."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int], special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self.special_ids = special_ids
        self._markers = {i: marker.content for i, marker in tokenizer.get_added_tokens_decoder().items()}
        self._raw = _raw_bytes(tokenizer)
        self.eos_ids = eos_ids
        self.vocab_size: int = 1 + max(tokenizer.get_vocab().values(), default=-1)
        self._bound = _ByteBound.of(tokenizer)

    def limited(self, vocab_size: int) -> BpeTokenizer:
        """The same but for ids from ``vocab_size`` on, which are none of its own: texts may still be encoded to them,
        and whoever takes ids must refuse them."""
        other = copy(self)
        other.vocab_size = min(vocab_size, self.vocab_size)
        other.eos_ids = frozenset(i for i in self.eos_ids if i < vocab_size)
        other.special_ids = frozenset(i for i in self.special_ids if i < vocab_size)
        return other

    def at_least(self, text: str) -> int:
        return 0 if self._bound is None else self._bound(text)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        tokenizer = self._tokenizer if special else self._plain
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def document(self) -> str:
        """It as a ``tokenizer.json``, for programs that read those."""
        return str(self._tokenizer.to_str())

    def token_text(self, token: int) -> str:
        name = self._tokenizer.id_to_token(token) if token in self.special_ids else None
        return self.decode([token], skip_special=False) if name is None else name

    def token_bytes(self, token: int) -> bytes:
        if token in self._markers:
            return self._markers[token].encode()
        piece = self._tokenizer.id_to_token(token) or ""
        return self._raw(piece)


def from_gguf(metadata: Mapping[str, object], path: Path) -> BpeTokenizer:
    """Build from the ``tokenizer.ggml.*`` keys. Raises ModelFormatError or UnsupportedModelError naming the key."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or not isinstance(pre, str) or pre not in _PATTERNS:
        raise UnsupportedModelError(
            f"{path} has the tokenizer {shown(kind)} with pre-tokenizer {shown(pre)}; supported is 'gpt2' with one of "
            f"{', '.join(_PATTERNS)}."
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens", path)
    merges = [_pair(merge, path) for merge in _strings(metadata, "tokenizer.ggml.merges", path)]
    try:
        model = models.BPE({token: i for i, token in enumerate(tokens)}, merges)
    except Exception as error:  # the library raises bare Exception for a merge whose parts are not in the vocabulary
        raise ModelFormatError(f"{path}: the tokenizer's merges do not fit its vocabulary: {error}.") from error
    tokenizer = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[pre]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = _add_markers(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type"))
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends += [tokenizer.token_to_id(name) for name in _END_NAMES]
    eos = frozenset(i for i in ends if isinstance(i, int) and 0 <= i < len(tokens))
    return BpeTokenizer(tokenizer, eos, special)


def from_directory(directory: Path) -> BpeTokenizer:
    """Build from ``tokenizer.json``; end tokens from ``generation_config.json``, ``config.json``, the tokenizer."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelFormatError(f"{directory} has no tokenizer.json.")
    try:
        tokenizer = Tokenizer.from_str(json.dumps(read_json(path)))
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
        raise ModelFormatError(f"{path} is not a tokenizer: {error}.") from error
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        found = read_json(directory / name).get("eos_token_id") if (directory / name).is_file() else None
        ends.update(i for i in (found if isinstance(found, list) else [found]) if isinstance(i, int))
    ends.update(i for i in map(tokenizer.token_to_id, _END_NAMES) if i is not None)
    special = frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return BpeTokenizer(tokenizer, frozenset(ends), special)


@dataclass(frozen=True, slots=True)
class _ByteBound:
    """Counts the bytes that must stand in some token, and divides by the most that one token holds.

    ``lost`` are the bytes that the vocabulary lacks: BPE without an unknown token drops them silently.
    """

    longest: int
    lost: bytes

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> _ByteBound | None:
        """For byte-level BPE without normalizer and without markers that swallow white space; None for others."""
        told = json.loads(tokenizer.to_str())
        splits = told["pre_tokenizer"] or {}
        kinds = {part.get("type") for part in (splits, *splits.get("pretokenizers", ()))}
        swallows = any(marker["lstrip"] or marker["rstrip"] for marker in told["added_tokens"])
        if "ByteLevel" not in kinds or told["normalizer"] or told["truncation"] or swallows:
            return None
        vocabulary = tokenizer.get_vocab()
        markers = [marker.content for marker in tokenizer.get_added_tokens_decoder().values()]
        longest = max(*map(len, vocabulary), *(len(marker.encode()) for marker in markers), 1)
        return cls(longest, bytes(byte for byte, sign in enumerate(_byte_signs()) if sign not in vocabulary))

    def __call__(self, text: str) -> int:
        return -(-len(text.encode(errors="replace").translate(None, self.lost)) // self.longest)


def _raw_bytes(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """How a piece of this vocabulary is spelled in bytes: byte-level signs, or a word sign and ``<0x0A>`` for bytes."""
    if '"ByteLevel"' in json.dumps(json.loads(tokenizer.to_str())["decoder"]):
        signs = {sign: byte for byte, sign in enumerate(_byte_signs())}
        return lambda piece: bytes(signs[sign] for sign in piece if sign in signs)
    return lambda piece: (
        bytes([int(piece[3:5], 16)]) if _BYTE_PIECE.fullmatch(piece) else piece.replace(_WORD_SIGN, " ").encode()
    )


def _byte_signs() -> list[str]:
    """What stands for each byte in a byte-level vocabulary: itself where it prints, else a character above 255."""
    prints = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


def _add_markers(tokenizer: Tokenizer, tokens: Sequence[str], types: object) -> frozenset[int]:
    """Register control tokens (special) and user-defined ones (not special); returns the special ids."""
    kinds = types if isinstance(types, list) else []
    special = [i for i, kind in enumerate(kinds[: len(tokens)]) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
    tokenizer.add_tokens(
        [
            AddedToken(tokens[i], normalized=False)
            for i, kind in enumerate(kinds[: len(tokens)])
            if kind == _USER_DEFINED
        ]
    )
    return frozenset(special)


def _strings(metadata: Mapping[str, object], key: str, path: Path) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ModelFormatError(f"{path}: {key} is missing or not a list of strings.")
    return value


def _pair(merge: str, path: Path) -> tuple[str, str]:
    left, found, right = merge.partition(" ")
    if not found:
        raise ModelFormatError(f"{path}: the merge {shown(merge)} is not two tokens.")
    return left, right

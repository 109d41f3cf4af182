"""A model's tokens as bytes, in the form that the guide library reads."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from ..ports import Tokenizer


class Words:
    """Satisfies what llguidance asks of a tokenizer: the bytes of each id, the special ids, and text to ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids | tokenizer.eos_ids)
        self.eos_token_id = min(tokenizer.eos_ids, default=0)
        self.bos_token_id = None
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Ids of plain text. The library tries bytes first, and takes TypeError for an answer."""
        if not isinstance(text, str):
            raise TypeError("text is wanted")
        size = self._tokenizer.vocab_size  # a text may hold pieces that the model has no embedding for
        return [token for token in self._tokenizer.encode(text, special=False) if token < size]


def guide_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """The library's view of a tokenizer; it takes about a second for 50,000 tokens."""
    ends = sorted(tokenizer.eos_ids)
    return LLTokenizer(TokenizerWrapper(Words(tokenizer)), n_vocab=tokenizer.vocab_size, eos_token=ends)

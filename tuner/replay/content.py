"""Text and token ids for prompts of which a trace knows only lengths and reuse.

A block id always becomes the same content, so prompts that share ids share tokens. The ``salt`` of a session start
makes its content different from that of every other start, without adding a token: two lanes on one trace then share
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from energyopt.core.errors import ConfigError

_TEXT = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
COMMON = tuple(_TEXT.split())
"""Words that, after a space, are one token in every vocabulary made from English text."""
_CACHED_BLOCKS = 32_768
_IDS = range(32, 256)
"""Ids that every vocabulary of at least 256 has, and that are no special tokens in the usual ones."""


class Filler(Protocol):
    """Makes content in units of one token each."""

    def block(self, name: str, units: int) -> Sequence[object]:
        """``units`` units, always the same for the same name; a shorter request gives the beginning of a longer."""
        ...


class WordFiller:
    """Words, each of which is one token behind a space."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._draw = lru_cache(maxsize=_CACHED_BLOCKS)(self._words)

    def block(self, name: str, units: int) -> Sequence[object]:
        return self._draw(name, units)

    def _words(self, name: str, units: int) -> tuple[str, ...]:
        return tuple(random.Random(f"{self._seed}/{name}").choices(COMMON, k=units))


class IdFiller:
    """Token ids from ``ids``. Raises ConfigError for an empty range."""

    def __init__(self, seed: int = 0, ids: range = _IDS) -> None:
        if not ids:
            raise ConfigError("The range of token ids to fill prompts with is empty.")
        self._seed, self._ids = seed, ids
        self._draw = lru_cache(maxsize=_CACHED_BLOCKS)(self._tokens)

    def block(self, name: str, units: int) -> Sequence[object]:
        return self._draw(name, units)

    def _tokens(self, name: str, units: int) -> tuple[int, ...]:
        return tuple(random.Random(f"{self._seed}/{name}").choices(self._ids, k=units))


def fill(
    filler: Filler, blocks: Sequence[int], block_tokens: int | None, units: int, *, salt: str, unique: str
) -> list[object]:
    """``units`` units of content: the blocks in order, then what they do not cover, which is like nothing else."""
    content: list[object] = []
    for name in blocks:
        left = units - len(content)
        if left <= 0 or block_tokens is None:
            break
        content += filler.block(f"{salt}#{name}", block_tokens)[:left]
    if len(content) < units:
        content += filler.block(f"{salt}!{unique}", units - len(content))
    return content

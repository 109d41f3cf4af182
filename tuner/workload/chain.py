"""Whole-prompt block ids for sessions whose rows carry only what they add to the history.

The tokens of such a session are pieces one behind the other: the blocks of each row, and after each row an answer that
is this session's own. Cutting that line into blocks gives the ids a prefix cache would see. A block that is exactly
one block of a first row keeps its id; every other gets an id of its own, equal for equal content behind equal blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from .trace import DERIVED_IDS

Piece = tuple[object, int, int]
"""Where tokens come from: an id, the offset in it, how many."""


class Interner:
    """Gives equal content behind an equal prefix equal ids, in the order of first sight."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int | None, tuple[Piece, ...]], int] = {}

    def name(self, before: int | None, content: tuple[Piece, ...]) -> int:
        return self._ids.setdefault((before, content), DERIVED_IDS + len(self._ids))


class SessionChain:
    """The prompt of one session as it grows. ``add`` appends a row and tells the ids of the whole prompt."""

    def __init__(self, block_tokens: int, interner: Interner, session: str) -> None:
        self._block, self._interner, self._session = block_tokens, interner, session
        self._full: list[int] = []
        self._tail: list[Piece] = []
        self._tail_tokens = 0
        self._rows = 0
        self.tokens = 0

    def add(self, tokens: int, ids: Sequence[int]) -> tuple[int, ...]:
        """Append a row of ``tokens`` with its block ids; returns the ids of the prompt, a partial block included."""
        first, self._rows = self._rows == 0, self._rows + 1
        for index, name in enumerate(ids):
            self._append(name, min(self._block, tokens - index * self._block), keep=first)
        if first:
            return tuple(ids)
        return (*self._full, *([self._name()] if self._tail else []))

    def answer(self, tokens: int) -> None:
        """Append the answer to the last row."""
        self._append(("answer", self._session, self._rows), tokens, keep=False)

    def _append(self, source: object, length: int, *, keep: bool) -> None:
        self.tokens += length
        offset = 0
        while offset < length:
            taken = min(length - offset, self._block - self._tail_tokens)
            self._tail.append((source, offset, taken))
            self._tail_tokens += taken
            offset += taken
            if self._tail_tokens == self._block:
                self._full.append(source if keep and isinstance(source, int) else self._name())
                self._tail, self._tail_tokens = [], 0

    def _name(self) -> int:
        return self._interner.name(self._full[-1] if self._full else None, tuple(self._tail))

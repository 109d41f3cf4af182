"""Guesses from the request itself: what followed the last tokens when they stood in its prompt or answer before.

Free of model and memory traffic, and good where answers repeat their prompt: code, quotes, summaries, agents' files.
Prompt lookup decoding (Saxena, 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..request import Request

_MOST_TOKENS = 16_384
"""Of a prompt, the newest so many are looked at: an index of more costs memory and a pause at the first guess."""


@dataclass(slots=True)
class _Index:
    """Where each run of tokens ended last: (length, tokens) -> position of what follows. ``known`` were entered."""

    known: int
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)


class NgramProposer:
    """Satisfies ``Proposer``: the longest run of ``longest`` to ``shortest`` tokens that occurred before, counts."""

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = tuple(range(longest, shortest - 1, -1))
        self._indices: dict[str, _Index] = {}

    def __len__(self) -> int:
        """How many requests are kept."""
        return len(self._indices)

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        total = request.num_tokens
        index = self._indices.get(request.id)
        if index is None:
            index = self._indices[request.id] = _Index(max(0, total - _MOST_TOKENS))
        self._enter(index, request, total)
        tail = tuple(request.tokens(max(0, total - self._sizes[0]), total))
        for size in self._sizes:
            found = index.ends.get(tail[-size:]) if len(tail) >= size else None
            if found is not None:
                return self._following(request, found, total, most)
        return ()

    def forget(self, request: Request) -> None:
        self._indices.pop(request.id, None)

    def _enter(self, index: _Index, request: Request, total: int) -> None:
        """Runs that something follows; so the newest one is not found by itself."""
        longest = self._sizes[0]
        start = max(0, index.known - longest)
        tokens = request.tokens(start, total - 1)
        for end in range(index.known, total - 1):
            for size in self._sizes:
                at = end + 1 - size - start
                if at >= 0:
                    index.ends[tuple(tokens[at : at + size])] = end + 1
        index.known = max(index.known, total - 1)

    def _following(self, request: Request, found: int, total: int, most: int) -> tuple[int, ...]:
        """What stood after the run; where that is the newest token itself, it goes round."""
        tokens = request.tokens(found, min(found + most, total))
        return tuple(tokens[place % len(tokens)] for place in range(most))

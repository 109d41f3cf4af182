"""Guesses from the request itself: what followed the last tokens when they stood in its prompt or answer before.

Free of model and memory traffic, and good where answers repeat their prompt: code, quotes, summaries, agents' files.
Prompt lookup decoding (Saxena, 2023).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..request import Request

MOST_TOKENS = 16_384
"""The newest so many tokens at least are looked at, and never twice as many: 4 bytes each, a microsecond a thousand."""


class _Seen:
    """The newest tokens of one request; ``tokens`` stand at positions from ``begin`` on."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self._tokens = np.empty(64, np.int32)
        self._count = 0

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return self._tokens[: self._count]

    def follow(self, request: Request) -> None:
        """Take over what came since the last call."""
        total = request.num_tokens
        new = request.tokens(self.begin + self._count, total)
        if self._count + len(new) > 2 * MOST_TOKENS:
            self.begin = total - MOST_TOKENS
            self._count, new = 0, request.tokens(self.begin, total)
        end = self._count + len(new)
        if end > len(self._tokens):
            self._tokens = np.resize(self._tokens, min(2 * end, 2 * MOST_TOKENS))
        self._tokens[self._count : end] = new
        self._count = end


class NgramProposer:
    """Satisfies ``Proposer``: the longest run of ``longest`` to ``shortest`` tokens that occurred before, counts."""

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        self._longest, self._shortest = longest, shortest
        self._seen: dict[str, _Seen] = {}

    def __len__(self) -> int:
        """How many requests are kept."""
        return len(self._seen)

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        seen = self._seen.get(request.id)
        if seen is None:
            seen = self._seen[request.id] = _Seen(max(0, request.num_tokens - MOST_TOKENS))
        seen.follow(request)
        end = self._last_run(seen.tokens)
        if end is None:
            return ()
        following = seen.tokens[end + 1 : end + 1 + most].tolist()
        # Where the run ends at the newest token but one or so, what followed goes round.
        return tuple(following[place % len(following)] for place in range(most))

    def forget(self, request: Request) -> None:
        self._seen.pop(request.id, None)

    def _last_run(self, tokens: npt.NDArray[np.int32]) -> int | None:
        """Where the longest end of ``tokens`` that stood there before, ended last."""
        newest, found = len(tokens) - 1, None
        ends = np.flatnonzero(tokens[:newest] == tokens[newest])
        for size in range(1, min(self._longest, newest) + 1):
            if size > 1:
                ends = ends[ends >= size - 1]
                ends = ends[tokens[ends - (size - 1)] == tokens[newest - (size - 1)]]
            if not len(ends):
                break
            found = int(ends[-1]) if size >= self._shortest else None
        return found

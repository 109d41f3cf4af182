"""Token ids to text, piece by piece, and the search for stop strings in it.

Text that was released never has to be taken back: a character is held until its bytes are complete, and text is held
while it may be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence

from .ports import Tokenizer

CONTEXT_TOKENS = 6
"""Tokens before the text that are decoded with it: enough for rules such as "no space at the start"."""
WINDOW_TOKENS = 12
"""The window is cut when it is longer; decoding a few ids too many costs less than decoding twice."""
MAX_HELD_TOKENS = 16
"""A character takes at most 4 bytes; after so many tokens without a whole one, these are no characters."""
_INCOMPLETE = "\ufffd"


class IncrementalDecoder:
    """Decodes one growing list of ids; the pieces join to what decoding the whole list at once gives.

    ``context`` are ids that precede the text (the end of the prompt); ``skip_special`` False keeps the names of special
    tokens. Cost per token does not grow with the text: a
    window of the last released ids is decoded again with the new ones, and the difference is the new text.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = (), *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids = list(context[-CONTEXT_TOKENS:])
        self._known = self._decode() if self._ids else ""
        if self._known.endswith(_INCOMPLETE):
            # The prompt ends within a character: decoded together with the answer it would change, not grow.
            self._ids, self._known = [], ""
        self._held = 0

    def add(self, token: int) -> str:
        """The text that ``token`` completes; empty while a character is incomplete."""
        self._ids.append(token)
        self._held += 1
        text = self._decode()
        if text.endswith(_INCOMPLETE) and self._held < MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def flush(self) -> str:
        """The text still held, incomplete characters as U+FFFD."""
        return self._release(self._decode()) if self._held else ""

    def _release(self, text: str) -> str:
        new = text[len(self._known) :]
        self._known = text
        if len(self._ids) > WINDOW_TOKENS:
            # Cut where text was released, so that no character and no run of raw bytes is split.
            self._ids = self._ids[-max(self._held, 1) :]
            self._known = self._decode()
        self._held = 0
        return new

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special=self._skip_special)


class StopScanner:
    """Passes text on until the first of several stop strings appears in it.

    ``stopped`` is True from then on; the stop string and what follows are dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped = False
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> str:
        """The part of all text so far that no stop string can reach any more and that was not returned yet."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [position for position in (text.find(stop) for stop in self._stops) if position >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text that was held for a stop string that did not come."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of ``text`` that ``stop`` begins with."""
        longest = min(len(text), len(stop) - 1)
        return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


class Detokenizer:
    """An incremental decoder and a stop scanner in a row: one per request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        context: Sequence[int] = (),
        stops: Sequence[str] = (),
        skip_special: bool = True,
    ) -> None:
        self._decoder = IncrementalDecoder(tokenizer, context, skip_special=skip_special)
        self._scanner = StopScanner(stops)

    @property
    def stopped(self) -> bool:
        """A stop string was found; the text before it has been returned."""
        return self._scanner.stopped

    def add(self, token: int) -> str:
        return self._scanner.feed(self._decoder.add(token))

    def flush(self) -> str:
        """The end of the text: whatever was held, unless a stop string appears in it."""
        return self._scanner.feed(self._decoder.flush()) + self._scanner.flush()

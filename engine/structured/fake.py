"""A guide without a grammar, for tests: the answer is one of a few texts of bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .ports import GuideError, GuideSpec


class FakeGuide:
    """Satisfies ``Guide`` for a tokenizer whose ids 0 to 255 are bytes: slow and obvious, the twin of the real one."""

    def __init__(self, texts: Sequence[bytes], end: int, vocab_size: int, so_far: bytes = b"") -> None:
        self._texts = tuple(texts)
        self._end = end
        self._vocab_size = vocab_size
        self._so_far = so_far
        self._failed = self._ended = False

    @property
    def finished(self) -> bool:
        if self._failed:
            return False
        return self._ended or all(text == self._so_far for text in self._possible())

    @property
    def failure(self) -> str | None:
        return f"no text begins with {self._so_far!r}" if self._failed else None

    def allowed(self) -> bytes:
        bits = [False] * self._vocab_size
        possible = [] if self._failed or self._ended else self._possible()
        for text in possible:
            if len(text) > len(self._so_far):
                bits[text[len(self._so_far)]] = True
        bits[self._end] = bits[self._end] or not any(bits) or self._so_far in possible
        return bytes(
            sum(bit << place for place, bit in enumerate(bits[start : start + 8])) for start in range(0, len(bits), 8)
        )

    def advance(self, token: int) -> None:
        if self._failed or self._ended:
            self._failed = True
        elif token == self._end:
            self._ended, self._failed = self._so_far in self._texts, self._so_far not in self._texts
        else:
            self._so_far += bytes([token]) if token < 256 else b""
            self._failed = token >= 256 or not self._possible()

    def fork(self) -> FakeGuide:
        copy = FakeGuide(self._texts, self._end, self._vocab_size, self._so_far)
        copy._failed, copy._ended = self._failed, self._ended
        return copy

    def _possible(self) -> list[bytes]:
        return [text for text in self._texts if text.startswith(self._so_far)]


class FakeGuides:
    """Satisfies ``GuideMaker``: it knows choices only. ``made`` counts what it compiled."""

    def __init__(self, *, end: int = 256, vocab_size: int = 260) -> None:
        self.made = 0
        self._end = end
        self._vocab_size = vocab_size

    def make(self, spec: GuideSpec) -> FakeGuide:
        if spec.kind != "choice":
            raise GuideError(f"{spec.field} cannot be followed: a fake knows choices only.", param=spec.field)
        self.made += 1
        return FakeGuide([text.encode() for text in json.loads(spec.source)], self._end, self._vocab_size)

"""A guide that begins when the model has stopped thinking."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .ports import Guide


class LateGuide:
    """Satisfies ``Guide``: anything but an end until the bytes of ``marker`` have come, then what ``inner`` says."""

    def __init__(
        self, inner: Guide, marker: bytes, spelled: Callable[[int], bytes], ends: Iterable[int], vocab_size: int
    ) -> None:
        self._inner = inner
        self._marker = marker
        self._spelled = spelled
        self._tail: bytes | None = b""
        free = bytearray(b"\xff" * -(-vocab_size // 8))
        for token in ends:
            free[token // 8] &= ~(1 << token % 8)
        self._free = bytes(free)

    @property
    def finished(self) -> bool:
        return self._tail is None and self._inner.finished

    @property
    def failure(self) -> str | None:
        return self._inner.failure

    def allowed(self) -> bytes:
        return self._free if self._tail is not None else self._inner.allowed()

    def advance(self, token: int) -> None:
        if self._tail is None:
            self._inner.advance(token)
            return
        seen = self._tail + self._spelled(token)
        self._tail = None if self._marker in seen else seen[-len(self._marker) :]

    def fork(self) -> LateGuide:
        copy = LateGuide(self._inner.fork(), self._marker, self._spelled, (), 0)
        copy._tail, copy._free = self._tail, self._free
        return copy

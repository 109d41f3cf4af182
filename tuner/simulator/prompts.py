"""A prompt of which only the end is looked at: its blocks have names, so their tokens are never read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import overload


class NamedPrompt(Sequence[int]):
    """``named`` tokens whose blocks have names, as zeros, and the ``rest`` behind them.

    A tuple of all of them would say the same in a hundred times the memory: traces have prompts of 10^5 tokens.
    """

    __slots__ = ("_length", "_named", "_rest")

    def __init__(self, named: int, rest: tuple[int, ...]) -> None:
        self._named, self._rest = named, rest
        self._length = named + len(rest)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        """A token, or a slice as a tuple. Raises IndexError."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1 and start >= self._named:
                return self._rest[start - self._named : max(start, stop) - self._named]
            return tuple(self[place] for place in range(start, stop, step))
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(f"token {index} of {self._length}")
        return 0 if place < self._named else self._rest[place - self._named]

    def __iter__(self) -> Iterator[int]:
        return chain(repeat(0, self._named), self._rest)

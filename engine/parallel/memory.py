"""Memory that the ranks of one host share: an anonymous file without a name, so nothing is left behind by a death.

Its first page tells how the engine stands: whether it is ending, and when each rank was last seen alive.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass

from energyopt.core.errors import EngineError, OutOfMemoryError

PAGE = mmap.PAGESIZE
MAX_RANKS = PAGE // 8 - 1


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a shared memory: bytes ``start`` to ``start + size``, whole pages."""

    start: int
    size: int


class Arena:
    """Hands out regions one after another; ``size`` is what a memory must have to hold them all."""

    def __init__(self) -> None:
        self.size = PAGE

    def take(self, size: int) -> Region:
        region = Region(self.size, -(-size // PAGE) * PAGE)
        self.size += region.size
        return region


class SharedMemory:
    """One mapping of the file behind ``fd``, which it owns. Pages are taken when first written."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size)
        self._words = memoryview(self._map)[:PAGE].cast("q")
        self._beats = memoryview(self._map)[:PAGE].cast("d")

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """A new file, zeroed, closed on exec unless it is passed on by name. Raises OutOfMemoryError."""
        fd = os.memfd_create("energyopt-ranks")
        try:
            os.ftruncate(fd, size)
            return cls(fd, size)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise OutOfMemoryError(f"{size} bytes of memory for the ranks did not fit: {error}.") from error

    @property
    def ending(self) -> bool:
        """Whether some rank is gone, so that waiting for any other has no use."""
        return bool(self._words[0])

    def end(self) -> None:
        """Tell every rank that waits."""
        self._words[0] = 1

    def check(self) -> None:
        """Raise EngineError if the engine is ending."""
        if self.ending:
            raise EngineError("Another rank is gone.")

    def beat(self, rank: int) -> None:
        """This rank is alive now, on the machine's monotonic clock."""
        self._beats[1 + rank] = time.monotonic()

    def last_beat(self, rank: int) -> float:
        """When the rank was last alive, seconds of the monotonic clock; 0 before its first word."""
        return self._beats[1 + rank]

    def view(self, region: Region) -> memoryview:
        """The bytes of a region, writable."""
        return memoryview(self._map)[region.start : region.start + region.size]

    def close(self) -> None:
        """Let go of the file; the mapping goes with the last view of it. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

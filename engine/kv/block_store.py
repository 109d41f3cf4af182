"""A place for blocks outside this process's memory: the port that disk, Mooncake Store and any other store satisfy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from energyopt.core.errors import EngineError

from .checksum import checksum


class StoreDownError(EngineError):
    """The store does not answer or refuses everything for now; blocks are computed instead. The caller asks again."""


class Got(StrEnum):
    """How reading a block ended; all but ``WHOLE`` leave the buffer's content undefined."""

    WHOLE = "whole"
    MISSING = "missing"
    CORRUPT = "corrupt"


class Put(StrEnum):
    """How writing a block ended. ``KNOWN``: somebody stored it or is about to, nothing was written."""

    STORED = "stored"
    KNOWN = "known"
    FULL = "full"


class BlockStore(Protocol):
    """Blocks of one layout by key. Methods may block, are called from several threads, and raise StoreDownError.

    Content is verified: ``WHOLE`` means the very bytes that some process put under this key and layout.
    """

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]: ...

    def get(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> Sequence[Got]:
        """Fill a buffer of the block's size for each key."""
        ...

    def put(self, keys: Sequence[bytes], blocks: Sequence[memoryview], checksums: Sequence[int]) -> Sequence[Put]:
        """Write blocks, each found only once it is whole."""
        ...

    def evicted(self) -> int:
        """Blocks that this process evicted from the store since start."""
        ...

    def reset(self) -> None:
        """Forget every block of this layout, those of other processes too."""
        ...

    def close(self) -> None:
        """End connections; idempotent, never raises."""
        ...


class MemoryStore:
    """A BlockStore in this process's memory, for tests and as the reference of the others.

    ``down`` makes every call raise StoreDownError; ``corrupt`` flips a byte of one stored block; ``shared`` is the
    content, which several stores may share as processes share a disk.
    """

    def __init__(self, layout: str, shared: dict[tuple[str, bytes], tuple[bytes, int]] | None = None) -> None:
        self.down = False
        self.capacity: int | None = None
        self._layout = layout
        self._blocks = {} if shared is None else shared
        self._lock = threading.Lock()

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        self._check()
        return [(self._layout, key) in self._blocks for key in keys]

    def get(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> Sequence[Got]:
        self._check()
        return [self._get(key, view) for key, view in zip(keys, into, strict=True)]

    def put(self, keys: Sequence[bytes], blocks: Sequence[memoryview], checksums: Sequence[int]) -> Sequence[Put]:
        self._check()
        return [self._put(*item) for item in zip(keys, blocks, checksums, strict=True)]

    def evicted(self) -> int:
        return 0

    def reset(self) -> None:
        self._check()
        with self._lock:
            for name in [name for name in self._blocks if name[0] == self._layout]:
                del self._blocks[name]

    def close(self) -> None:
        """Nothing to end."""

    def discard(self, prefix: bytes) -> None:
        """Forget every block whose key begins so."""
        self._check()
        with self._lock:
            for name in [name for name in self._blocks if name[0] == self._layout and name[1].startswith(prefix)]:
                del self._blocks[name]

    def corrupt(self, key: bytes) -> None:
        """Flip a byte of a stored block."""
        content, check = self._blocks[self._layout, key]
        self._blocks[self._layout, key] = (bytes([content[0] ^ 1]) + content[1:], check)

    def _get(self, key: bytes, into: memoryview) -> Got:
        found = self._blocks.get((self._layout, key))
        if found is None:
            return Got.MISSING
        content, check = found
        if len(content) != len(into):
            return Got.CORRUPT
        into[:] = content
        return Got.WHOLE if checksum(into) == check else Got.CORRUPT

    def _put(self, key: bytes, block: memoryview, check: int) -> Put:
        with self._lock:
            if (self._layout, key) in self._blocks:
                return Put.KNOWN
            if self.capacity is not None and len(self._blocks) >= self.capacity:
                return Put.FULL
            self._blocks[self._layout, key] = (bytes(block), check)
            return Put.STORED

    def _check(self) -> None:
        if self.down:
            raise StoreDownError("The store is down.")

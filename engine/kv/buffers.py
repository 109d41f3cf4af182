"""Places in host memory that a block passes through: a slot of the host tier, or a staging buffer."""

from __future__ import annotations

import threading
from typing import Protocol


class Buffer(Protocol):
    """One block's bytes in host memory, kept while somebody holds it. Thread-safe.

    It is born with one hold and without content. Whoever filled ``view`` calls ``filled``; who needs it longer calls
    ``hold``; each hold ends with ``release``, after which ``view`` must not be used.
    """

    @property
    def view(self) -> memoryview: ...

    @property
    def checksum(self) -> int | None:
        """Of the content; None until it was filled."""
        ...

    def filled(self, checksum: int) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...


class Staging:
    """A few buffers of one block each, for blocks that have no slot in the host tier.

    ``take`` gives None when none is free, or after ``patience`` seconds of waiting for one.
    """

    def __init__(self, memory: memoryview, block_bytes: int) -> None:
        self._free = [memory[at : at + block_bytes] for at in range(0, len(memory) - block_bytes + 1, block_bytes)]
        self.capacity = len(self._free)
        self._changed = threading.Condition()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, patience: float = 0.0) -> Buffer | None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._free), timeout=patience):
                return None
            return _StagedBuffer(self, self._free.pop())

    def give(self, view: memoryview) -> None:
        """Take a buffer back; for the buffers themselves."""
        with self._changed:
            self._free.append(view)
            self._changed.notify()


class _StagedBuffer:
    def __init__(self, staging: Staging, view: memoryview) -> None:
        self._staging = staging
        self._view = view
        self._holds = 1
        self._lock = threading.Lock()
        self.checksum: int | None = None

    @property
    def view(self) -> memoryview:
        return self._view

    def filled(self, checksum: int) -> None:
        self.checksum = checksum

    def hold(self) -> None:
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        with self._lock:
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._staging.give(self._view)

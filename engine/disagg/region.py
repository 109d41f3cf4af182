"""Where the blocks of one connection are put on the lending side, and how its peer comes to them."""

from __future__ import annotations

import fcntl
import mmap
import os

from .errors import HandOverError, Reason
from .ports import CHUNK, MemoryAgent


class Region:
    """A buffer of ours whose bytes are sent, or which the peer reads by an agent; or memory that the peer shares."""

    def __init__(self, block_bytes: int) -> None:
        self.shared = False
        self.agent: MemoryAgent | None = None
        self._block_bytes = block_bytes
        self._memory: mmap.mmap | bytearray = bytearray(0)
        self._views: list[memoryview] = []

    @property
    def views(self) -> list[memoryview]:
        """One for each block of a chunk."""
        if not self._views:
            self._memory = bytearray(CHUNK * self._block_bytes)
            self._views = cut(memoryview(self._memory), self._block_bytes)
        return self._views

    def share(self, descriptor: int | None) -> None:
        """Use the peer's memory, which must be sealed against shrinking: it could end this process otherwise."""
        if descriptor is None or self._views:
            raise HandOverError(Reason.PROTOCOL, "Shared memory was announced, but none came along.")
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            size = CHUNK * self._block_bytes
            if not sealed or os.fstat(descriptor).st_size != size:
                raise HandOverError(Reason.LAYOUT, f"The shared memory must have {size} bytes and be sealed.")
            self._memory = mmap.mmap(descriptor, size)
        except OSError as error:
            raise HandOverError(Reason.PROTOCOL, f"The shared memory cannot be used: {error}.") from error
        finally:
            os.close(descriptor)
        self._views = cut(memoryview(self._memory), self._block_bytes)
        self.shared = True

    def register(self, agent: MemoryAgent | None) -> bytes:
        """Let the peer read the buffer: what it must have for that."""
        if agent is None or self.shared or self.agent is not None:
            raise HandOverError(Reason.PROTOCOL, "Memory was asked for that is not to be had here.")
        assert self.views
        ticket = agent.register(memoryview(self._memory))
        self.agent = agent
        return ticket

    def close(self) -> None:
        if self.agent is not None:
            self.agent.withdraw(memoryview(self._memory))
            self.agent = None
        self._views = []


def cut(memory: memoryview, size: int) -> list[memoryview]:
    """Pieces of ``size`` bytes."""
    return [memory[at : at + size] for at in range(0, len(memory), size)]

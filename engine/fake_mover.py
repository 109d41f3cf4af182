"""A mover over a fake runner's digests, for tests of tiers that need no model. Satisfies ``kv.ports.BlockMover``."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .fake import FakeRunner

_NEVER_WRITTEN = (1 << 64) - 1


class FakeMover:
    """A block's bytes are its digests, 8 bytes each, so a block that is mixed up shows in the tokens."""

    def __init__(self, runner: FakeRunner, layout: str = "fake") -> None:
        self.layout = layout
        self._runner = runner
        self._format = struct.Struct(f"<{runner.cache.block_tokens}Q")

    @property
    def block_bytes(self) -> int:
        return self._format.size

    def allocate(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        for slot, view in zip(slots, into, strict=True):
            digests = self._runner.block(slot)
            view[:] = self._format.pack(*(_NEVER_WRITTEN if d is None else d for d in digests))

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        for slot, view in zip(slots, source, strict=True):
            digests = self._format.unpack(view)
            self._runner.set_block(slot, [None if d == _NEVER_WRITTEN else d for d in digests])

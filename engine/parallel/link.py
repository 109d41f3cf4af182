"""The way from one pipeline stage to the next: tensors in order, a bounded number of them under way."""

from __future__ import annotations

import struct
from typing import Protocol

import torch

from energyopt.core.errors import EngineError

from .memory import Arena, Region, SharedMemory
from .semaphores import STRIDE, Semaphores

SLOT_BYTES = 1 << 20
SLOTS = 8
_SHAPE = struct.Struct("<qq")
_SHAPE_BYTES = 64
_FULL, _FREE = 0, 1


class Link(Protocol):
    """One direction between two ranks."""

    def send(self, rows: torch.Tensor) -> None:
        """Give ``rows`` (n, width) to the next stage; blocks while it is too far behind.

        Raises EngineError if it is gone.
        """
        ...

    def receive(self, dtype: torch.dtype) -> torch.Tensor:
        """The next rows that the stage before has sent; blocks. Raises EngineError if it is gone."""
        ...


class SharedLink:
    """A ring of slots in shared memory, for one sender and one receiver. Satisfies ``Link``.

    What is longer than a slot goes in several. There is no bound on a wait: a stage may take as long as its work does,
    and if it dies the memory says so.
    """

    def __init__(self, memory: SharedMemory, region: Region) -> None:
        view = memory.view(region)
        self._signals = Semaphores(view[: 2 * STRIDE], 2, memory.check)
        self._shapes = view[2 * STRIDE : 2 * STRIDE + SLOTS * _SHAPE_BYTES]
        data = torch.frombuffer(view[2 * STRIDE + SLOTS * _SHAPE_BYTES :], dtype=torch.uint8)
        self._slots = [data[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] for slot in range(SLOTS)]
        self._at = 0

    @staticmethod
    def reserve(arena: Arena) -> Region:
        return arena.take(2 * STRIDE + SLOTS * (_SHAPE_BYTES + SLOT_BYTES))

    @staticmethod
    def initialize(memory: SharedMemory, region: Region) -> None:
        """Once, before either end attaches."""
        signals = Semaphores(memory.view(region)[: 2 * STRIDE], 2, memory.check)
        signals.initialize()
        for _ in range(SLOTS):
            signals.post(_FREE)

    def send(self, rows: torch.Tensor) -> None:
        rows, step = rows.contiguous(), self._rows_a_slot(rows.shape[1] * rows.element_size())
        for start in range(0, max(1, len(rows)), step):
            piece = rows[start : start + step]
            self._signals.wait(_FREE, None)
            size = piece.numel() * piece.element_size()
            self._slots[self._at][:size].view(piece.dtype).view(piece.shape).copy_(piece)
            _SHAPE.pack_into(self._shapes, self._at * _SHAPE_BYTES, len(rows), rows.shape[1])
            self._at = (self._at + 1) % SLOTS
            self._signals.post(_FULL)

    def receive(self, dtype: torch.dtype) -> torch.Tensor:
        result: torch.Tensor | None = None
        filled = 0
        while result is None or filled < len(result):
            self._signals.wait(_FULL, None)
            count, width = _SHAPE.unpack_from(self._shapes, self._at * _SHAPE_BYTES)
            if result is None:
                result = torch.empty((count, width), dtype=dtype)
            row = width * dtype.itemsize
            rows = min(self._rows_a_slot(row), len(result) - filled)
            result[filled : filled + rows] = self._slots[self._at][: rows * row].view(dtype).view(rows, width)
            filled += rows
            self._at = (self._at + 1) % SLOTS
            self._signals.post(_FREE)
        return result

    @staticmethod
    def _rows_a_slot(row_bytes: int) -> int:
        if row_bytes > SLOT_BYTES:
            raise EngineError(f"A row of {row_bytes} bytes does not fit into a slot of {SLOT_BYTES}.")
        return SLOT_BYTES // max(1, row_bytes)

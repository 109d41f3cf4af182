"""Copies of KV blocks out of the ranks' pools and into them, beside the steps: what tiers and hand-overs move.

A rank takes orders for copies between steps, from the same queue; bytes go through links of their own in shared memory,
so the thread that moves blocks and the one that steps do not meet.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from energyopt.core.errors import EngineError, OutOfMemoryError
from kernels.ops import CopyBlocks

from ..memory import available_bytes
from ..mover import TorchMover
from .link import Link
from .wire import Kind

_ROW = 4096
"""Bytes of one row of a link, at most: blocks travel as rows, whatever their size."""

Order = Callable[[Kind, bytes], None]


class RankMover:
    """One rank's part of every block, from the engine's side. Satisfies ``engine.kv.ports.BlockMover``.

    ``order`` sends the rank a frame; ``inward`` leads to it, ``outward`` from it. Any thread, one at a time.
    """

    layout = "one rank's part"

    def __init__(self, block_bytes: int, order: Order, inward: Link, outward: Link) -> None:
        self.block_bytes = block_bytes
        self._order, self._inward, self._outward = order, inward, outward
        self._one_at_a_time = threading.Lock()

    def allocate(self, size: int) -> memoryview:
        """Zeroed pages that cost nothing until they are written."""
        if size > available_bytes(torch.device("cpu")):
            raise OutOfMemoryError(f"{size} bytes of host memory for KV blocks did not fit.")
        return memoryview(mmap.mmap(-1, max(1, size)))[:size]

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        with self._one_at_a_time:
            self._order(Kind.READ, _packed(slots))
            blocks = self._outward.receive(torch.uint8).view(len(slots), self.block_bytes).numpy()
        for view, block in zip(into, blocks, strict=True):
            np.frombuffer(view, dtype=np.uint8)[:] = block

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        blocks = np.stack([np.frombuffer(view, dtype=np.uint8) for view in source])
        with self._one_at_a_time:
            self._order(Kind.WRITE, _packed(slots))
            self._inward.send(_rows(torch.from_numpy(blocks)))
            self._outward.receive(torch.uint8)  # nothing, once all is written


class Copies:
    """The rank's side of ``RankMover``: does what it is told with its own pool."""

    def __init__(self, pool: torch.Tensor, inward: Link, outward: Link, copy_blocks: CopyBlocks | None = None) -> None:
        self._mover = TorchMover(pool, RankMover.layout, copy_blocks)
        self._inward, self._outward = inward, outward

    def read(self, body: bytes) -> None:
        slots = _unpacked(body)
        blocks = torch.empty((len(slots), self._mover.block_bytes), dtype=torch.uint8)
        self._mover.read(slots, [memoryview(block) for block in blocks.numpy()])
        self._outward.send(_rows(blocks))

    def write(self, body: bytes) -> None:
        slots = _unpacked(body)
        blocks = self._inward.receive(torch.uint8).view(len(slots), self._mover.block_bytes)
        self._mover.write(slots, [memoryview(block) for block in blocks.numpy()])
        self._outward.send(torch.empty((0, 1), dtype=torch.uint8))


def _rows(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(-1, math.gcd(blocks.shape[1], _ROW))


def _packed(slots: Sequence[int]) -> bytes:
    return np.asarray(slots, dtype=np.int32).tobytes()


def _unpacked(body: bytes) -> list[int]:
    if len(body) % 4:
        raise EngineError(f"An order to copy of {len(body)} bytes names no blocks.")
    slots: list[int] = np.frombuffer(body, dtype=np.int32).tolist()
    return slots

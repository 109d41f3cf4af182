"""Copies KV blocks between the runner's pool and host memory. Satisfies ``engine.kv.ports.BlockMover``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from energyopt.core.errors import EngineError, OutOfMemoryError
from kernels.ops import CopyBlocks

from .memory import available_bytes, foreign_memory_errors, lazy_pages

Slabs = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
_STAGE_BYTES = 64 << 20
"""Of device memory in which scattered blocks are put together: it takes a PCIe bus some milliseconds to move them."""
_CELL = 512
"""Words that one thread block of the copy handles in a row, at most."""


class TorchMover:
    """Moves whole blocks of a pool (layers, blocks, ...); a block's bytes are its slabs, layer after layer.

    It trusts that nobody computes on the slots it is given. ``layout`` names model, dtype and shape. On a GPU copies
    run on a stream of their own and end before the call returns. With ``copy_blocks`` one launch gathers the slabs of
    many blocks, and each block then crosses the bus as one piece.
    """

    def __init__(self, pool: torch.Tensor, layout: str, copy_blocks: CopyBlocks | None = None) -> None:
        self.layout = layout
        self._copy_blocks = copy_blocks
        self._cells = None if copy_blocks is None else blocks_as_cells(pool)
        self._pool = pool.view(torch.uint8).reshape(pool.shape[0], pool.shape[1], -1)
        self.block_bytes = self._pool.shape[0] * self._pool.shape[2]
        self._stream = torch.cuda.Stream(pool.device) if pool.is_cuda else None  # type: ignore[no-untyped-call]
        self._pinned: list[memoryview] = []

    def allocate(self, size: int) -> memoryview:
        """Zeroed pages that cost nothing until they are written (CPU), or page-locked memory (GPU)."""
        if size > available_bytes(torch.device("cpu")):
            raise OutOfMemoryError(f"{size} bytes of host memory for KV blocks did not fit.")
        with foreign_memory_errors(f"{size} bytes of host memory for KV blocks"):
            view = memoryview(lazy_pages(size))[:size]
        if self._stream is not None:
            self._pin(view)
        return view

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        if self._copy_blocks is not None and self._cells is not None:
            with torch.cuda.stream(self._stream):  # of None it changes nothing
                for ids, stage, views in self._stages(slots, into):
                    self._copy_blocks(self._cells, stage, ids, torch.arange(len(ids), device=ids.device))
                    for view, block in zip(views, stage, strict=True):
                        _bytes(view).copy_(block.view(torch.uint8).flatten(), non_blocking=True)
            self._wait()
            return
        if self._stream is None:
            pool = self._pool.numpy()
            for slot, view in zip(slots, into, strict=True):
                np.copyto(self._slabs(view), pool[:, slot])
            return
        with torch.cuda.stream(self._stream):
            for slot, view in zip(slots, into, strict=True):
                torch.from_numpy(self._slabs(view)).copy_(self._pool[:, slot], non_blocking=True)
        self._stream.synchronize()

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        if self._copy_blocks is not None and self._cells is not None:
            with torch.cuda.stream(self._stream):
                for ids, stage, views in self._stages(slots, source):
                    for view, block in zip(views, stage, strict=True):
                        block.view(torch.uint8).flatten().copy_(_bytes(view), non_blocking=True)
                    self._copy_blocks(stage, self._cells, torch.arange(len(ids), device=ids.device), ids)
            self._wait()
            return
        if self._stream is None:
            pool = self._pool.numpy()
            for slot, view in zip(slots, source, strict=True):
                np.copyto(pool[:, slot], self._slabs(view))
            return
        with torch.cuda.stream(self._stream):
            for slot, view in zip(slots, source, strict=True):
                self._pool[:, slot].copy_(torch.from_numpy(self._slabs(view)), non_blocking=True)
        self._stream.synchronize()

    def _stages(
        self, slots: Sequence[int], views: Sequence[memoryview]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, Sequence[memoryview]]]:
        """As many blocks at a time as the stage holds: their ids, the stage and their memory."""
        assert self._cells is not None
        if len(slots) != len(views):
            raise ValueError(f"{len(slots)} blocks cannot be copied to or from {len(views)} places.")
        step = max(1, _STAGE_BYTES // self.block_bytes)
        for first in range(0, len(slots), step):
            ids = torch.tensor(slots[first : first + step], dtype=torch.int64).to(self._cells.device)
            shape = (len(ids), *self._cells.shape[1:])
            stage = torch.empty(shape, dtype=self._cells.dtype, device=self._cells.device)
            yield ids, stage, views[first : first + step]

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _slabs(self, view: memoryview) -> Slabs:
        return np.frombuffer(view, dtype=np.uint8).reshape(self._pool.shape[0], self._pool.shape[2])

    def _pin(self, view: memoryview) -> None:
        """Lock the pages in place; torch's own pinned allocator would round the size up to a power of two."""
        address = np.frombuffer(view, dtype=np.uint8).ctypes.data
        status = torch.cuda.cudart().cudaHostRegister(address, len(view), 0)  # type: ignore[no-untyped-call]
        if int(status):
            raise EngineError(f"{len(view)} bytes of host memory could not be page-locked: CUDA error {int(status)}.")
        self._pinned.append(view)


def blocks_as_cells(pool: torch.Tensor) -> torch.Tensor | None:
    """A pool (layers, blocks, ...) as (blocks, layers, 2, cells, words), which is what ``kernels.kv_copy`` takes; the
    words are as long as a slab divides into. None for slabs of an odd number of bytes."""
    slabs = pool.view(torch.uint8).reshape(pool.shape[0], pool.shape[1], -1)
    for kind in (torch.int64, torch.int32, torch.int16, torch.uint8):
        words, rest = divmod(slabs.shape[2], 2 * kind.itemsize)
        if not rest:
            width = math.gcd(words, _CELL)
            return slabs.view(kind).view(*slabs.shape[:2], 2, words // width, width).transpose(0, 1)
    return None


def _bytes(view: memoryview) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(view, dtype=np.uint8))

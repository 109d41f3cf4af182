"""Copies KV blocks between the runner's pool and host memory. Satisfies ``engine.kv.ports.BlockMover``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from energyopt.core.errors import EngineError, OutOfMemoryError

from .memory import available_bytes, foreign_memory_errors, lazy_pages

Slabs = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class TorchMover:
    """Moves whole blocks of a pool (layers, blocks, ...); a block's bytes are its slabs, layer after layer.

    It trusts that nobody computes on the slots it is given. ``layout`` names model, dtype and shape. On a GPU copies
    run on a stream of their own and end before the call returns.
    """

    def __init__(self, pool: torch.Tensor, layout: str) -> None:
        self.layout = layout
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
        if self._stream is None:
            pool = self._pool.numpy()
            for slot, view in zip(slots, source, strict=True):
                np.copyto(pool[:, slot], self._slabs(view))
            return
        with torch.cuda.stream(self._stream):
            for slot, view in zip(slots, source, strict=True):
                self._pool[:, slot].copy_(torch.from_numpy(self._slabs(view)), non_blocking=True)
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

"""A model inside the native library: weights go in once, then one call computes one step. The only user of pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch

from .blocks import Blocks
from .library import Shape, StepBatch

ROWS = 16
"""Outputs that lie together: a matrix has whole blocks of them."""
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
PARTS = {"embedding": 0, "head": 1, "qkv": 2, "out": 3, "gate_up": 4, "down": 5}
NORMS = {"input": 0, "mlp": 1, "final": 2}
_OUT_OF_MEMORY = 1


class NativeError(RuntimeError):
    """A native function failed; the message is its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step as arrays of 32-bit integers.

    ``tokens`` and ``positions`` (rows,); ``spans`` (spans, 4): first row, first position, number of rows, where its
    block table begins in ``tables``; ``wanted`` the rows whose logits are asked for.
    """

    tokens: Ints
    positions: Ints
    spans: Ints
    tables: Ints
    wanted: Ints


class Program:
    """One model; ``close`` frees it. Raises NativeError, MemoryError.

    Not thread-safe, but for ``matrix``: several threads may bring different ones.
    """

    def __init__(self, library: ctypes.CDLL, shape: Shape, frequencies: Sequence[float], threads: int) -> None:
        self._library = library
        self._vocab_rows = -(-shape.vocab // ROWS) * ROWS
        self._vocab = shape.vocab
        self._logits: Floats = np.empty((0, self._vocab_rows), np.float32)
        self._pool: np.ndarray[tuple[int, ...], np.dtype[np.uint16]] | None = None
        table = np.asarray(frequencies, np.float32)
        self._model: int | None = library.native_open(ctypes.byref(shape), table.ctypes.data, threads)
        if not self._model:
            raise NativeError(f"A model of {threads} threads: {library.native_error().decode('utf-8', 'replace')}")
        self.variant: str = library.native_variant().decode()
        self._placing = Lock()

    def matrix(self, part: str, layer: int, blocks: Blocks, bias: torch.Tensor | None = None) -> None:
        """Set a weight (``PARTS``); its bytes are copied and may then go."""
        data = np.ascontiguousarray(blocks.data)
        own = None if bias is None else np.ascontiguousarray(bias.float().numpy())
        place = (self._model, PARTS[part], layer)
        pointer = None if own is None else own.ctypes.data
        with self._placing:
            self._check(self._library.native_matrix(*place, int(blocks.kind), blocks.rows, blocks.width, pointer))
        self._library.native_pack(*place, 0, blocks.rows, data.ctypes.data)

    def tie(self) -> None:
        """The embedding is also the head."""
        self._library.native_tie(self._model)

    def norm(self, which: str, layer: int, weight: torch.Tensor) -> None:
        """Set the weights of a norm (``NORMS``)."""
        own = np.ascontiguousarray(weight.float().numpy())
        self._check(self._library.native_norm(self._model, NORMS[which], layer, own.ctypes.data))

    def block_size(self, head_dim: int, block_tokens: int) -> int:
        """16-bit numbers that one block of one head of one layer takes, padding to whole tiles included."""
        return int(self._library.native_block_size(head_dim, block_tokens))

    def use_pool(self, pool: np.ndarray[tuple[int, ...], np.dtype[np.uint16]], block_tokens: int) -> None:
        """Keys and values go to ``pool`` (layers * kv_heads, blocks, block_size), zeros at first, from now on."""
        self._pool = pool
        self._library.native_pool(self._model, pool.ctypes.data, pool.shape[1], block_tokens)

    def step(self, step: Step, threads: int) -> Floats:
        """Logits (wanted, vocab), which the next step overwrites.

        What the numbers say is checked by the library, which sees no array's length: NativeError names what is wrong.
        """
        _check_arrays(step)
        wanted = len(step.wanted)
        if len(self._logits) < wanted:
            self._logits = np.empty((wanted, self._vocab_rows), np.float32)
        span_row, span_start, span_count, span_table = np.ascontiguousarray(step.spans.T)
        batch = StepBatch(
            rows=len(step.tokens),
            spans=len(step.spans),
            wanted=wanted,
            stride=self._vocab_rows,
            entries=len(step.tables),
            tokens=step.tokens.ctypes.data,
            positions=step.positions.ctypes.data,
            span_row=span_row.ctypes.data,
            span_start=span_start.ctypes.data,
            span_count=span_count.ctypes.data,
            span_table=span_table.ctypes.data,
            tables=step.tables.ctypes.data,
            wanted_rows=step.wanted.ctypes.data,
            logits=self._logits.ctypes.data,
        )
        self._check(self._library.native_step(self._model, ctypes.byref(batch), threads))
        return self._logits[:wanted, : self._vocab]

    def multiply(self, part: str, layer: int, x: Floats, outputs: int, threads: int = 1) -> Floats:
        """``x`` (rows, width) times a weight: what tests hold against the twin."""
        whole = -(-outputs // ROWS) * ROWS
        y = np.empty((len(x), whole), np.float32)
        own = np.ascontiguousarray(x)
        self._check(
            self._library.native_multiply(
                self._model, PARTS[part], layer, own.ctypes.data, len(x), y.ctypes.data, whole, threads
            )
        )
        return y[:, :outputs]

    def close(self) -> None:
        """Free the weights and end the threads; idempotent."""
        if self._model:
            self._library.native_close(self._model)
            self._model = None

    def _check(self, status: int) -> None:
        check(self._library, status)


def check(library: ctypes.CDLL, status: int) -> None:
    """Raise what a function's ``status`` says: MemoryError, NativeError or nothing."""
    if status == 0:
        return
    message = library.native_error().decode("utf-8", "replace")
    if status == _OUT_OF_MEMORY:
        raise MemoryError(message)
    raise NativeError(message)


def _check_arrays(step: Step) -> None:
    """Raise NativeError unless the arrays are what the library will take their addresses for."""
    for name in ("tokens", "positions", "spans", "tables", "wanted"):
        array = getattr(step, name)
        wide = name == "spans"
        if array.dtype != np.int32 or not array.flags.c_contiguous or array.ndim != 1 + wide:
            raise NativeError(f"{name} is not a contiguous array of 32-bit integers.")
    if len(step.positions) != len(step.tokens) or step.spans.shape[1] != 4:
        raise NativeError(f"{len(step.positions)} positions and {step.spans.shape[1]} columns of spans do not fit.")

"""Decode steps as captured graphs: at small batches a GPU waits for Python more than it computes.

A graph replays the same launches on the same memory, so a batch is padded to one of few shapes and written into
tensors that stay where they are. A padding row has length 0 and no place in the pool: it reads and writes nothing.
Whatever has no graph (a prefill, a batch or context beyond the largest shape) is left to the plain loop, and so is
everything once a capture has failed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from kernels.pages import DecodeRows, Pages, table_width

from .inputs import StepInputs

logger = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batches that have a graph. Padding costs at most a third of the rows from 8 on, and the weights, which are most of
what a step reads, are read once whatever the batch."""

Integers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GraphShape:
    """``rows`` requests, each with a table of ``width`` blocks."""

    rows: int
    width: int


class Replay(Protocol):
    """A captured step; the logits it gives are overwritten by the next replay of the same graph."""

    def __call__(self) -> torch.Tensor: ...


class Capturer(Protocol):
    """Turns a step into a graph. Raises RuntimeError where the device or one of the operators cannot."""

    def capture(self, step: Callable[[], torch.Tensor]) -> Replay: ...


class CudaCapturer:
    """CUDA graphs, which on ROCm are HIP graphs. All share one pool of memory, as only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, step: Callable[[], torch.Tensor]) -> Replay:
        """Runs ``step`` twice on a side stream first: libraries and kernels set themselves up at their first call,
        which must not be captured."""
        side: torch.cuda.Stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest shape: ``rows`` requests of ``blocks`` blocks of ``block_tokens``."""

    rows: int
    blocks: int
    block_tokens: int

    def shape_of(self, inputs: StepInputs) -> GraphShape | None:
        """The shape that ``inputs`` are padded to; None where they are no decode step or too large for a graph."""
        spans = inputs.spans
        if not spans or len(inputs.samples) != len(spans) or any(span.count != 1 for span in spans):
            return None
        width = table_width(max(-(-span.stop // self.block_tokens) for span in spans))
        if len(spans) > min(self.rows, ROWS[-1]) or width > table_width(self.blocks):
            return None
        return GraphShape(ROWS[bisect_left(ROWS, len(spans))], width)


class StaticInputs:
    """The tensors that every graph reads, in one buffer: a step's inputs cross to the device in one copy.

    Parts are whole multiples of 64 bytes, so every view starts where Triton expects an aligned address.
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._block_tokens = limits.block_tokens
        self._line = -(-ROWS[min(bisect_left(ROWS, limits.rows), len(ROWS) - 1)] // 16) * 16
        size = 4 * self._line + self._line * table_width(limits.blocks)
        pinned = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self._staging: Integers = self._host.numpy()
        self._device = torch.zeros(size, dtype=torch.int32, device=device)

    def fill(self, inputs: StepInputs, shape: GraphShape) -> None:
        """Write ``inputs``, padded to ``shape``. The previous step must have ended: it may still read them."""
        used = 4 * self._line + shape.rows * shape.width
        pad(inputs, shape, self._block_tokens, self._staging, self._line)
        self._device[:used].copy_(self._host[:used], non_blocking=True)

    def views(self, shape: GraphShape) -> tuple[torch.Tensor, torch.Tensor, Pages]:
        """Token ids (rows,), positions (rows,) and the pages they lie in."""
        tokens, positions, slots, lengths = (
            self._device[index * self._line : index * self._line + shape.rows] for index in range(4)
        )
        first = 4 * self._line
        table = self._device[first : first + shape.rows * shape.width].view(shape.rows, shape.width)
        return tokens, positions, StaticPages(slots, DecodeRows(slice(0, shape.rows), table, lengths))


class StaticPages(Pages):
    """The place of a padded decode step, in tensors that are rewritten for every step."""

    def __init__(self, slots: torch.Tensor, rows: DecodeRows) -> None:
        super().__init__((), 1, slots.device)
        self.slots, self.decode_rows, self.chunk_rows = slots, rows, ()


def pad(inputs: StepInputs, shape: GraphShape, block_tokens: int, out: Integers, line: int) -> None:
    """Write tokens, positions, slots and lengths, each from a multiple of ``line`` on, and then the table.

    A padding row has token 0 at position 0, no slot (-1) and no length.
    """
    count = len(inputs.spans)
    for index, (values, empty) in enumerate(_columns(inputs, block_tokens)):
        part = out[index * line : index * line + shape.rows]
        part[:count] = values
        part[count:] = empty
    table = out[4 * line : 4 * line + shape.rows * shape.width].reshape(shape.rows, shape.width)
    table[:] = 0
    for row, span in zip(table, inputs.spans, strict=False):
        used = -(-span.stop // block_tokens)
        row[:used] = span.blocks[:used]


def _columns(inputs: StepInputs, block_tokens: int) -> tuple[tuple[Sequence[int], int], ...]:
    slots = [s.blocks[s.start // block_tokens] * block_tokens + s.start % block_tokens for s in inputs.spans]
    lengths = [span.stop for span in inputs.spans]
    return (inputs.tokens, 0), ([span.start for span in inputs.spans], 0), (slots, -1), (lengths, 0)


class DecodeGraphs:
    """Graphs by shape, each captured when its shape is first met."""

    def __init__(
        self,
        step: Callable[[torch.Tensor, torch.Tensor, Pages], torch.Tensor],
        limits: Limits,
        device: torch.device,
        capturer: Capturer,
    ) -> None:
        """``step(tokens, positions, pages)`` computes logits (rows, vocab); running it again changes nothing."""
        self._step, self._limits, self._capturer = step, limits, capturer
        self._static = StaticInputs(limits, device)
        self._graphs: dict[GraphShape, Replay] = {}
        self._failed = False

    @property
    def captured(self) -> tuple[GraphShape, ...]:
        return tuple(self._graphs)

    def logits(self, inputs: StepInputs) -> torch.Tensor | None:
        """Logits (requests, vocab), valid until the next call; None where the plain loop has to compute them."""
        shape = None if self._failed else self._limits.shape_of(inputs)
        if shape is None:
            return None
        self._static.fill(inputs, shape)
        replay = self._graphs.get(shape) or self._capture(shape)
        return None if replay is None else replay()[: len(inputs.spans)]

    def _capture(self, shape: GraphShape) -> Replay | None:
        tokens, positions, pages = self._static.views(shape)
        try:
            replay = self._capturer.capture(lambda: self._step(tokens, positions, pages))
        except RuntimeError as error:  # what a driver says when an operator cannot be captured
            logger.warning("Decode steps cannot be captured as graphs and run one by one: %s", error)
            self._failed = True
            return None
        self._graphs[shape] = replay
        return replay

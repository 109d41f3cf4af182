"""A step as bytes: the numbers of its inputs in one array of int32, nothing that would have to be trusted."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from energyopt.core.errors import EngineError
from kernels.pages import Span

from ..batch import BlockCopy
from ..inputs import StepInputs

_HEADER = 5


def pack_inputs(inputs: StepInputs) -> bytes:
    """Sizes; spans as (row, start, count, blocks); sampled rows; copies; tokens; all spans' blocks; and then, for each
    further group of layers, how many blocks each span has there, and which."""
    spans = [number for span in inputs.spans for number in (span.row, span.start, span.count, len(span.blocks))]
    copies = [number for copy in inputs.copies for number in (copy.source, copy.target)]
    blocks = [block for span in inputs.spans for block in span.blocks]
    others = [number for tables in inputs.others for table in tables for number in (len(table), *table)]
    sizes = [len(inputs.spans), len(inputs.samples), len(inputs.copies), len(inputs.tokens), len(inputs.others)]
    numbers = [*sizes, *spans, *inputs.samples, *copies, *inputs.tokens, *blocks, *others]
    return np.array(numbers, dtype=np.int32).tobytes()


def unpack_inputs(body: bytes) -> StepInputs:
    """The inputs that ``pack_inputs`` packed. Raises EngineError for bytes that are none."""
    if len(body) % 4 or len(body) < 4 * _HEADER:
        raise EngineError(f"A step of {len(body)} bytes is no step.")
    numbers: list[int] = np.frombuffer(body, dtype=np.int32).tolist()
    num_spans, num_samples, num_copies, num_tokens, num_others = numbers[:_HEADER]
    ends = list(accumulate((_HEADER, 4 * num_spans, num_samples, 2 * num_copies, num_tokens)))
    if min(numbers[:_HEADER]) < 0 or ends[-1] > len(numbers):
        raise EngineError(f"A step of {len(numbers)} numbers is shorter than it says.")
    spans, samples, copies, tokens = (numbers[start:end] for start, end in pairwise(ends))
    blocks = iter(numbers[ends[-1] :])
    rows = zip(spans[::4], spans[1::4], spans[2::4], spans[3::4], strict=True)
    found = [Span(row, start, count, [next(blocks, -1) for _ in range(held)]) for row, start, count, held in rows]
    held = tuple(BlockCopy(*pair) for pair in zip(copies[::2], copies[1::2], strict=True))
    others = tuple([[next(blocks, -1) for _ in range(next(blocks, 0))] for _ in found] for _ in range(num_others))
    return StepInputs(tokens, found, samples, held, others)

"""A step as bytes: the numbers of its inputs in one array of int32, nothing that would have to be trusted."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from energyopt.core.errors import EngineError
from kernels.pages import Span

from ..batch import BlockCopy
from ..inputs import StepInputs

_HEADER = 4


def pack_inputs(inputs: StepInputs) -> bytes:
    """Sizes; spans as (row, start, count, blocks); sampled rows; copies; tokens; all spans' blocks."""
    spans = [number for span in inputs.spans for number in (span.row, span.start, span.count, len(span.blocks))]
    copies = [number for copy in inputs.copies for number in (copy.source, copy.target)]
    blocks = [block for span in inputs.spans for block in span.blocks]
    sizes = [len(inputs.spans), len(inputs.samples), len(inputs.copies), len(inputs.tokens)]
    return np.array([*sizes, *spans, *inputs.samples, *copies, *inputs.tokens, *blocks], dtype=np.int32).tobytes()


def unpack_inputs(body: bytes) -> StepInputs:
    """The inputs that ``pack_inputs`` packed. Raises EngineError for bytes that are none."""
    if len(body) % 4 or len(body) < 4 * _HEADER:
        raise EngineError(f"A step of {len(body)} bytes is no step.")
    numbers: list[int] = np.frombuffer(body, dtype=np.int32).tolist()
    num_spans, num_samples, num_copies, num_tokens = numbers[:_HEADER]
    ends = list(accumulate((_HEADER, 4 * num_spans, num_samples, 2 * num_copies, num_tokens)))
    if min(numbers[:_HEADER]) < 0 or ends[-1] > len(numbers):
        raise EngineError(f"A step of {len(numbers)} numbers is shorter than it says.")
    spans, samples, copies, tokens = (numbers[start:end] for start, end in pairwise(ends))
    blocks = iter(numbers[ends[-1] :])
    rows = zip(spans[::4], spans[1::4], spans[2::4], spans[3::4], strict=True)
    found = [Span(row, start, count, [next(blocks, -1) for _ in range(held)]) for row, start, count, held in rows]
    return StepInputs(
        tokens, found, samples, tuple(BlockCopy(*pair) for pair in zip(copies[::2], copies[1::2], strict=True))
    )

"""What a model needs of a batch, and nothing else: it is small, and travels to every rank that computes together."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.pages import Span

from .batch import Batch, BlockCopy


@dataclass(frozen=True, slots=True)
class StepInputs:
    """``tokens`` are the ids of all rows, ``spans`` say which of them continue which sequence, in which blocks.

    ``samples`` are the rows whose logits are wanted, ascending. ``copies`` of blocks come first, in order.
    """

    tokens: list[int]
    spans: list[Span]
    samples: list[int]
    copies: tuple[BlockCopy, ...] = ()

    def positions(self) -> list[int]:
        """The position of every row in its sequence."""
        return [position for span in self.spans for position in range(span.start, span.stop)]


def step_inputs(batch: Batch) -> StepInputs:
    """Rows stand in the order of the batch's items; a sampling item's newest row samples."""
    tokens: list[int] = []
    spans: list[Span] = []
    samples: list[int] = []
    for item in batch.items:
        spans.append(Span(len(tokens), item.start, item.count, item.request.block_ids))
        tokens += item.tokens()
        if item.sample:
            samples.append(len(tokens) - 1)
    return StepInputs(tokens, spans, samples, batch.copies)

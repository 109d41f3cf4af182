"""What a model needs of a batch, and nothing else: it is small, and travels to every rank that computes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.pages import Span

from .batch import Batch, BlockCopy
from .kv.layout import FullAttention, GroupSpec, RecurrentState


@dataclass(frozen=True, slots=True)
class StepInputs:
    """``tokens`` are the ids of all rows, ``spans`` say which of them continue which sequence, in which blocks.

    ``samples`` are the rows whose logits are wanted, ascending. ``copies`` of blocks come first, in order. The spans'
    blocks are those of the first group of layers; ``others`` are the blocks of the further ones, by group and span.
    """

    tokens: list[int]
    spans: list[Span]
    samples: list[int]
    copies: tuple[BlockCopy, ...] = ()
    others: tuple[Sequence[Sequence[int]], ...] = ()

    def spans_of(self, group: int, spec: GroupSpec) -> list[Span]:
        """The spans with the blocks of one group.

        Where a group no longer reads what lies far back, positions count from the first block that it does read, which
        changes no distance: its table has gaps before that.
        """
        tables = [span.blocks for span in self.spans] if group == 0 else self.others[group - 1]
        spans = [replace(span, blocks=table) for span, table in zip(self.spans, tables, strict=True)]
        if isinstance(spec, RecurrentState | FullAttention):
            return spans
        firsts = [spec.first_read(span.start) for span in spans]
        return [
            replace(span, start=span.start - first * spec.block_tokens, blocks=span.blocks[first:])
            for span, first in zip(spans, firsts, strict=True)
        ]

    def positions(self) -> list[int]:
        """The position of every row in its sequence."""
        return [position for span in self.spans for position in range(span.start, span.stop)]


def step_inputs(batch: Batch) -> StepInputs:
    """Rows stand in the order of the batch's items. Of an item the rows that are scored are sampled from too, then its
    newest one, if it samples, and those of its guesses."""
    tokens: list[int] = []
    spans: list[Span] = []
    samples: list[int] = []
    for item in batch.items:
        spans.append(Span(len(tokens), item.start, item.count, item.request.block_ids))
        tokens += item.tokens()
        samples += range(len(tokens) - item.rows, len(tokens))
    groups = len(batch.items[0].request.other_tables) if batch.items else 0
    others = tuple([item.request.other_tables[group] for item in batch.items] for group in range(groups))
    return StepInputs(tokens, spans, samples, batch.copies, others)


def idle_inputs(block: int, groups: int) -> StepInputs:
    """One row that nobody asked for, in a ``block`` that nobody else has: for ranks that only others need in a step."""
    return StepInputs([0], [Span(0, 0, 1, [block])], [], others=tuple([[block]] for _ in range(groups - 1)))

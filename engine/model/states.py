"""Which states a step reads and writes, as index tensors that all layers of a group share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from kernels.pages import Span
from kernels.sequences import Sequences, sequences


class StateMoves:
    """For each sequence of a step: the block whose state it continues and the block that its new state goes to.

    ``spans`` are the sequences' rows and their tables, one block for every ``block_tokens`` positions: the state before
    position ``p`` is in block ``(p - 1) // block_tokens`` of its table, and there is none before position 0.
    """

    def __init__(self, spans: Sequence[Span], block_tokens: int, device: torch.device) -> None:
        self._spans = tuple(spans)
        self._block_tokens = block_tokens
        self._device = device
        self._taps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @cached_property
    def read(self) -> torch.Tensor:
        """Blocks (sequences,) that hold the states before; where there is none, that of the state behind."""
        return self._blocks([(span.start or span.stop) - 1 for span in self._spans])

    @cached_property
    def write(self) -> torch.Tensor:
        """Blocks (sequences,) for the states behind the last row."""
        return self._blocks([span.stop - 1 for span in self._spans])

    @cached_property
    def fresh(self) -> torch.Tensor:
        """Indices of the sequences that begin here."""
        return self._integers([i for i, span in enumerate(self._spans) if span.start == 0])

    @cached_property
    def sequences(self) -> Sequences:
        """The rows of each sequence; its state is at its own index."""
        counts = [span.count for span in self._spans]
        return sequences(counts, list(range(len(counts))), [span.start for span in self._spans], device=self._device)

    def load(self, part: torch.Tensor) -> torch.Tensor:
        """A copy of the states before, (sequences, *part), contiguous; zeros where a sequence begins."""
        found = part.index_select(0, self.read)
        return found.index_fill_(0, self.fresh, 0) if len(self.fresh) else found

    def store(self, part: torch.Tensor, states: torch.Tensor) -> None:
        """Write the states behind the last rows."""
        part.index_copy_(0, self.write, states)

    def taps(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For a causal convolution over ``width`` positions.

        Of the ``width - 1`` inputs kept of each sequence, end to end, and the step's rows behind them: the inputs of
        each row (rows, width), oldest first, and those that are kept then (sequences, width - 1).
        """
        if width not in self._taps:
            kept, before = width - 1, len(self._spans) * (width - 1)
            rows: list[list[int]] = []
            last: list[list[int]] = []
            for number, span in enumerate(self._spans):
                line = [
                    *range(number * kept, (number + 1) * kept),
                    *range(before + span.row, before + span.row + span.count),
                ]
                rows += [line[at : at + width] for at in range(span.count)]
                last.append(line[span.count :])
            self._taps[width] = (self._integers(rows), self._integers(last))
        return self._taps[width]

    def _blocks(self, positions: list[int]) -> torch.Tensor:
        found = [span.blocks[at // self._block_tokens] for span, at in zip(self._spans, positions, strict=True)]
        return self._integers(found)

    def _integers(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self._device)

"""Requests whose rows lie end to end and who each own a recurrent state: what ``gated_delta`` runs over."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Sequences:
    """Requests whose rows lie end to end.

    ``starts`` (requests + 1,) int32 bounds each one's rows; ``slots`` (requests,) its state; ``offsets`` (requests,)
    int32 counts the tokens already in that state. Where ``block_tokens`` > 0, the state after every token that
    completes a block (counted from the request's first token) is written; request ``r``'s from ``boundary_starts[r]``
    on, of ``boundaries`` in all.
    """

    starts: torch.Tensor
    slots: torch.Tensor
    offsets: torch.Tensor
    boundary_starts: torch.Tensor
    boundaries: int
    block_tokens: int


def sequences(
    rows: list[int], slots: list[int], offsets: list[int], block_tokens: int = 0, device: torch.device | str = "cpu"
) -> Sequences:
    """Lay out requests with these counts of rows, state slots and earlier tokens."""

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    starts, marks = [0], [0]
    for count, offset in zip(rows, offsets, strict=True):
        starts.append(starts[-1] + count)
        marks.append(marks[-1] + ((offset + count) // block_tokens - offset // block_tokens if block_tokens else 0))
    return Sequences(tensor(starts), tensor(slots), tensor(offsets), tensor(marks), marks[-1], block_tokens)

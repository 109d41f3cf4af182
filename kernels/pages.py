"""Where a batch's tokens lie in the paged KV pool, as index tensors that all layers of one step share.

A layer's pool is a tensor ``(blocks, block_tokens, 2, kv_heads, head_dim)``: keys at index 0 of the third axis, values
at 1. A *span* is one request's part of the batch: consecutive rows that continue a context. Spans of one row (decode)
are computed together, padded to the longest of their group; longer ones (prefill chunks) one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

_SLACK_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``row`` to ``row + count`` of the batch are positions ``start`` to ``start + count`` of one request.

    ``blocks`` covers at least ``start + count`` tokens.
    """

    row: int
    start: int
    count: int
    blocks: Sequence[int]

    @property
    def stop(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """One-row spans of similar length. ``blocks`` (n * width,), ``mask`` (n, 1, 1, width * block_tokens): 0 or -inf."""

    rows: torch.Tensor | slice
    blocks: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """One longer span. ``mask`` (count, stop) is None where plain causal masking does (nothing before it)."""

    rows: slice
    blocks: torch.Tensor
    stop: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Pages:
    """A batch's place in the pool. ``slots`` (rows,) numbers each new token's place, block-major."""

    spans: tuple[Span, ...]
    slots: torch.Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


def plan_pages(
    spans: Sequence[Span], block_tokens: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> Pages:
    """Build the index tensors of one step; ``dtype`` is that of the masks, which must be the queries'."""
    singles = [span for span in spans if span.count == 1]
    return Pages(
        spans=tuple(spans),
        slots=torch.from_numpy(_slots(spans, block_tokens)).to(device),
        decodes=tuple(_group(group, block_tokens, device, dtype) for group in length_groups(singles, block_tokens)),
        chunks=tuple(_chunk(span, block_tokens, device, dtype) for span in spans if span.count > 1),
    )


def length_groups(spans: Sequence[Span], block_tokens: int) -> list[list[Span]]:
    """Split spans so that padding to the longest of a group at most doubles its blocks, but for a few to spare.

    One group, in the given order, if that holds for all of them: the usual case.
    """
    widths = [-(-span.stop // block_tokens) for span in spans]
    if not spans or max(widths) <= 2 * min(widths) + _SLACK_BLOCKS:
        return [list(spans)] if spans else []
    groups: list[list[Span]] = []
    limit = 0
    for width, span in sorted(zip(widths, spans, strict=True), key=lambda pair: pair[0]):
        if width > limit:
            groups.append([])
            limit = 2 * width + _SLACK_BLOCKS
        groups[-1].append(span)
    return groups


def _slots(spans: Sequence[Span], block_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    slots = np.empty(sum(span.count for span in spans), dtype=np.int64)
    at = 0
    for span in spans:
        if span.count == 1:
            slots[at] = span.blocks[span.start // block_tokens] * block_tokens + span.start % block_tokens
        else:
            positions = np.arange(span.start, span.stop)
            table = np.asarray(span.blocks, dtype=np.int64)
            slots[at : at + span.count] = table[positions // block_tokens] * block_tokens + positions % block_tokens
        at += span.count
    return slots


def _group(group: Sequence[Span], block_tokens: int, device: torch.device, dtype: torch.dtype) -> DecodeGroup:
    lengths = np.array([span.stop for span in group])
    width = -(-int(lengths.max()) // block_tokens)
    table = np.zeros((len(group), width), dtype=np.int64)
    for entry, span in zip(table, group, strict=True):
        used = min(len(span.blocks), width)
        entry[:used] = span.blocks[:used]
    beyond = np.arange(width * block_tokens)[None, :] >= lengths[:, None]
    mask = torch.zeros(beyond.shape, dtype=dtype).masked_fill_(torch.from_numpy(beyond), -torch.inf)
    return DecodeGroup(
        rows=_rows([span.row for span in group], device),
        blocks=torch.from_numpy(table.ravel()).to(device),
        mask=mask.view(len(group), 1, 1, -1).to(device),
    )


def _rows(rows: list[int], device: torch.device) -> torch.Tensor | slice:
    """A slice where the rows are consecutive: a view costs nothing, a gather a kernel per layer."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows, device=device)


def _chunk(span: Span, block_tokens: int, device: torch.device, dtype: torch.dtype) -> Chunk:
    used = -(-span.stop // block_tokens)
    mask = None
    if span.start:
        mask = torch.full((span.count, span.stop), -torch.inf, dtype=dtype, device=device).triu_(span.start + 1)
    blocks = torch.tensor(span.blocks[:used], dtype=torch.int64, device=device)
    return Chunk(slice(span.row, span.row + span.count), blocks, span.stop, mask)

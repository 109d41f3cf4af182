"""Where a batch's tokens lie in the paged KV pool, as index tensors that all layers of one step share.

A layer's pool is a tensor ``(blocks, block_tokens, 2, kv_heads, head_dim)``: keys at index 0 of the third axis, values
at 1. A *span* is one request's part of the batch: consecutive rows that continue a context. Spans of one row (decode)
are computed together, padded to the longest of their group; longer ones (prefill chunks) one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

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
    """One-row spans of similar length. ``blocks`` (n * width,), ``lengths`` (n, 1, 1, 1), ``mask`` (n, 1, 1, width *
    block_tokens): 0 or -inf."""

    rows: torch.Tensor | slice
    blocks: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor
    windows: dict[int, torch.Tensor] = field(default_factory=dict)

    def mask_of(self, window: int) -> torch.Tensor:
        """``mask``, and with a ``window`` above 0 without the positions before it."""
        if window and window not in self.windows:
            position = torch.arange(self.mask.shape[-1], device=self.mask.device)
            self.windows[window] = self.mask.masked_fill(position < self.lengths - window, -torch.inf)
        return self.windows[window] if window else self.mask


@dataclass(frozen=True, slots=True)
class Chunk:
    """One longer span: positions ``start`` to ``stop``. ``mask`` (count, stop) is None where plain causal masking does
    (nothing before it)."""

    rows: slice
    blocks: torch.Tensor
    start: int
    stop: int
    mask: torch.Tensor | None
    windows: dict[int, torch.Tensor] = field(default_factory=dict)

    def mask_of(self, window: int) -> torch.Tensor | None:
        """As ``mask``, within the last ``window`` positions where that is above 0."""
        return self.full_mask(window, self.mask) if 0 < window < self.stop else self.mask

    def full_mask(self, window: int, like: torch.Tensor | None) -> torch.Tensor:
        """The mask written out, in the type of ``like`` (None: float32)."""
        if window not in self.windows:
            self.windows[window] = _causal(self.start, self.stop, window, self.blocks.device, like)
        return self.windows[window]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """One-row spans for ``paged_decode``. ``table`` (n, width) int32, ``lengths`` (n,) int32."""

    rows: torch.Tensor | slice
    table: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Neighbouring longer spans for ``paged_prefill``: ``starts`` (n + 1,) counts from the first of ``rows``."""

    rows: slice
    table: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    max_rows: int


class Pages:
    """A batch's place in the pool. ``slots`` (rows,) numbers each new token's place, block-major.

    Each implementation of attention wants its index tensors in a form of its own; each form is built when first asked
    for and then shared by all layers. ``dtype`` is that of the masks, which must be the queries'.
    """

    def __init__(
        self, spans: Sequence[Span], block_tokens: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.spans = tuple(spans)
        self._block_tokens, self._device, self._dtype = block_tokens, device, dtype

    @cached_property
    def slots(self) -> torch.Tensor:
        return torch.from_numpy(_slots(self.spans, self._block_tokens)).to(self._device)

    @cached_property
    def decodes(self) -> tuple[DecodeGroup, ...]:
        """For torch's attention: one-row spans, padded to the longest of their group."""
        groups = length_groups([span for span in self.spans if span.count == 1], self._block_tokens)
        return tuple(_group(group, self._block_tokens, self._device, self._dtype) for group in groups)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """For torch's attention: the longer spans, one by one."""
        return tuple(
            _chunk(span, self._block_tokens, self._device, self._dtype) for span in self.spans if span.count > 1
        )

    @cached_property
    def decode_rows(self) -> DecodeRows | None:
        """For the kernels: all one-row spans; None where there are none."""
        singles = [span for span in self.spans if span.count == 1]
        if not singles:
            return None
        rows = _rows([span.row for span in singles], self._device)
        return DecodeRows(rows, self._table(singles), self._integers([span.stop for span in singles]))

    @cached_property
    def chunk_rows(self) -> tuple[ChunkRows, ...]:
        """For the kernels: the longer spans, in runs of neighbouring rows."""
        runs: list[list[Span]] = []
        for span in self.spans:
            if span.count == 1:
                continue
            if runs and runs[-1][-1].row + runs[-1][-1].count == span.row:
                runs[-1].append(span)
            else:
                runs.append([span])
        return tuple(self._chunk_run(run) for run in runs)

    def _chunk_run(self, run: Sequence[Span]) -> ChunkRows:
        starts = list(accumulate((span.count for span in run), initial=0))
        return ChunkRows(
            rows=slice(run[0].row, run[0].row + starts[-1]),
            table=self._table(run),
            starts=self._integers(starts),
            lengths=self._integers([span.stop for span in run]),
            max_rows=max(span.count for span in run),
        )

    def _integers(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self._device)

    def _table(self, spans: Sequence[Span]) -> torch.Tensor:
        """Each span's blocks (n, width) int32; the width is a power of two, so that few launches differ by it."""
        widths = [-(-span.stop // self._block_tokens) for span in spans]
        table = np.zeros((len(spans), table_width(max(widths))), dtype=np.int32)
        for line, span, width in zip(table, spans, widths, strict=True):
            line[:width] = span.blocks[:width]
        return torch.from_numpy(table).to(self._device)


def plan_pages(
    spans: Sequence[Span], block_tokens: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> Pages:
    """The place of one step's batch; see ``Pages``."""
    return Pages(spans, block_tokens, device, dtype)


def table_width(blocks: int) -> int:
    """The width of a table of pages that holds ``blocks``: a power of two, at least 16 (a row then starts on a
    multiple of 64 bytes, which Triton compiles for)."""
    return max(16, 1 << max(0, blocks - 1).bit_length())


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
        lengths=torch.from_numpy(lengths).view(-1, 1, 1, 1).to(device),
        mask=mask.view(len(group), 1, 1, -1).to(device),
    )


def _rows(rows: list[int], device: torch.device) -> torch.Tensor | slice:
    """A slice where the rows are consecutive: a view costs nothing, a gather a kernel per layer."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows, device=device)


def _chunk(span: Span, block_tokens: int, device: torch.device, dtype: torch.dtype) -> Chunk:
    used = -(-span.stop // block_tokens)
    like = torch.empty(0, dtype=dtype)
    mask = _causal(span.start, span.stop, 0, device, like) if span.start else None
    blocks = torch.tensor(span.blocks[:used], dtype=torch.int64, device=device)
    return Chunk(slice(span.row, span.row + span.count), blocks, span.start, span.stop, mask)


def _causal(start: int, stop: int, window: int, device: torch.device, like: torch.Tensor | None) -> torch.Tensor:
    """(stop - start, stop): 0 where position ``start + row`` sees a column, -inf elsewhere."""
    kind = torch.float32 if like is None else like.dtype
    mask = torch.full((stop - start, stop), -torch.inf, dtype=kind, device=device).triu_(start + 1)
    if 0 < window < stop:
        mask += torch.full_like(mask, -torch.inf).tril_(start - window)
    return mask

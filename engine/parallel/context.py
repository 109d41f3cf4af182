"""Decode context parallelism: ranks that hold the same key heads split the positions of each sequence among them.

Position ``p`` lies with rank ``p % size``, at place ``p // size`` of its blocks: a block of the scheduler is a block of
every rank, ``size`` times as long, so the prefix cache counts in blocks times ``size``. Each rank attends over its own
positions for the query heads of all, and the parts are merged by their log-sum-exps; a rank without a visible position
weighs nothing. Both kinds of attention read one key head here: copies exist only where ranks outnumber key heads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from kernels.ops import PLAIN, Ops, Style
from kernels.pages import Pages, Span, length_groups
from kernels.twins.merge_states import merge_states as plain_merge

from .ports import Collective

Merge = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def split_context(base: Ops, context: Collective, device: torch.device) -> Ops:
    """``base`` with keys and values spread over the ranks of ``context``."""
    if context.size == 1:
        return base
    merge: Merge = plain_merge
    if device.type != "cpu":
        merge = importlib.import_module("kernels.merge_states").merge_states  # Triton, which a CPU does without
    split = ContextAttention(base, context, merge)
    return replace(
        base,
        name=f"{base.name}, context over {context.size}",
        rope_store=split.rope_store,
        store_kv=split.store_kv,
        attention=split.attention,
        latent_attention=split.latent_attention,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that read the same blocks of a shard, or one row each: ``blocks`` (n, width), ``positions`` (rows,)."""

    rows: torch.Tensor | slice
    blocks: torch.Tensor
    positions: torch.Tensor


class Shard:
    """What one rank holds and sees of a step, of which the scheduler's ``pages`` tell positions and blocks."""

    def __init__(self, pages: Pages, rank: int, size: int, block_tokens: int, device: torch.device) -> None:
        self._spans, self._rank, self._size, self._block_tokens = pages.spans, rank, size, block_tokens
        self._device = device
        self._masks: dict[tuple[int, int], torch.Tensor] = {}

    @cached_property
    def own(self) -> tuple[torch.Tensor, Pages]:
        """The rows whose positions lie here, and the places where their keys and values go."""
        rows, slots = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for span in self._spans:
            positions = np.arange(span.start, span.stop)
            mine = positions % self._size == self._rank
            places = positions[mine] // self._size
            table = np.asarray(span.blocks, dtype=np.int64)
            rows.append(span.row + np.flatnonzero(mine))
            slots.append(table[places // self._block_tokens] * self._block_tokens + places % self._block_tokens)
        stored = _Stored(torch.from_numpy(np.concatenate(slots)).to(self._device))
        return torch.from_numpy(np.concatenate(rows)).to(self._device), stored

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Decodes of similar length together, padded; longer spans one by one."""
        local = [replace(span, start=self._held(span.stop) - 1, count=1) for span in self._spans if span.count == 1]
        groups = [self._decodes(group) for group in length_groups(local, self._block_tokens)]
        return (*groups, *(self._chunk(span) for span in self._spans if span.count > 1))

    def mask(self, number: int, window: int) -> torch.Tensor:
        """Of part ``number``: 0 where a row sees a place, else -inf; (rows, 1, places)."""
        key = (number, window)
        if key not in self._masks:
            part = self.parts[number]
            places = torch.arange(part.blocks.shape[1] * self._block_tokens, device=self._device)
            ago = part.positions[:, None] - (places * self._size + self._rank)[None, :]
            hidden = (ago < 0) | (ago >= window) if window else ago < 0
            self._masks[key] = torch.zeros(ago.shape, device=self._device).masked_fill_(hidden, -torch.inf)[:, None]
        return self._masks[key]

    def _held(self, stop: int) -> int:
        """Places of the first ``stop`` positions that lie here, 1 at least: an empty shard is masked altogether."""
        return max(1, (stop - 1 - self._rank) // self._size + 1)

    def _decodes(self, group: Sequence[Span]) -> Part:
        width = max(-(-span.stop // self._block_tokens) for span in group)
        table = np.zeros((len(group), width), dtype=np.int64)
        for entry, span in zip(table, group, strict=True):
            used = min(len(span.blocks), width)
            entry[:used] = span.blocks[:used]
        rows = [span.row for span in group]
        newest = {span.row: span.start for span in self._spans}
        return Part(
            torch.tensor(rows, device=self._device),
            torch.from_numpy(table).to(self._device),
            torch.tensor([newest[row] for row in rows], device=self._device),
        )

    def _chunk(self, span: Span) -> Part:
        width = -(-self._held(span.stop) // self._block_tokens)
        return Part(
            slice(span.row, span.row + span.count),
            torch.tensor([list(span.blocks[:width])], dtype=torch.int64, device=self._device),
            torch.arange(span.start, span.stop, device=self._device),
        )


class _Stored(Pages):
    """Places to write to, and nothing to read."""

    def __init__(self, slots: torch.Tensor) -> None:
        super().__init__((), 1, slots.device)
        self._own = slots

    @cached_property
    def slots(self) -> torch.Tensor:
        return self._own


class ContextAttention:
    """The operators that know where a position lies; the others are ``base``'s."""

    def __init__(self, base: Ops, context: Collective, merge: Merge) -> None:
        self._base, self._context, self._merge = base, context, merge
        self._newest: tuple[Pages, Shard] | None = None

    def rope_store(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
        pool: torch.Tensor, pages: Pages, start: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """See ``kernels.ops.RopeStore``: every row is turned, and those that lie here are written."""
        own, stored = self._shard(pages, pool).own
        part = slice(start, start + cos.shape[-1])
        turned = query.clone()
        turned[..., part] = self._base.rope(query[..., part].contiguous(), cos, sin)
        kept = key[own]
        kept[..., part] = self._base.rope(kept[..., part].contiguous(), cos[own], sin[own])
        kv = kept if value is None else torch.stack((kept, value[own]), dim=1)
        self._base.store_kv(pool, kv, stored)
        return turned

    def store_kv(self, pool: torch.Tensor, kv: torch.Tensor, pages: Pages) -> None:
        own, stored = self._shard(pages, pool).own
        self._base.store_kv(pool, kv[own], stored)

    def attention(self, query: torch.Tensor, pool: torch.Tensor, pages: Pages, style: Style = PLAIN) -> torch.Tensor:
        """See ``kernels.ops.Attention``. A sink is added once, behind the merge."""
        keys, values = pool[:, :, 0, 0], pool[:, :, 1, 0]
        out, lse = self._attend(query, keys, values, pages, style.scale_of(query.shape[-1]), style.window)
        if style.sinks is not None:
            out = out * torch.sigmoid(lse - style.sinks.float())[..., None]
        return out.to(query.dtype)

    def latent_attention(
        self, query: torch.Tensor, pool: torch.Tensor, pages: Pages, latent: int, scale: float
    ) -> torch.Tensor:
        """See ``kernels.ops.LatentAttention``."""
        keys = pool[:, :, 0]
        return self._attend(query, keys, keys[..., :latent], pages, scale, 0)[0].to(query.dtype)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pages: Pages, scale: float, window: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Own heads' output (rows, heads, width) and log-sum-exp (rows, heads) over the positions of all ranks.

        ``keys`` and ``values`` are (blocks, block_tokens, width).
        """
        ranks, heads = self._context, query.shape[1]
        shard = self._shard(pages, keys)
        everybody = torch.cat(tuple(ranks.all_gather(query)), dim=1).float()
        found = everybody.new_zeros((len(query), everybody.shape[1], values.shape[-1] + 1))
        for number, part in enumerate(shard.parts):
            blocks = part.blocks
            seen = [side[blocks.view(-1)].view(len(blocks), -1, side.shape[-1]).float() for side in (keys, values)]
            scores = (everybody[part.rows] * scale) @ seen[0].transpose(1, 2) + shard.mask(number, window)
            lse = scores.logsumexp(-1, keepdim=True)
            weights = torch.where(lse > -torch.inf, (scores - lse).exp(), 0.0)
            found[part.rows] = torch.cat((weights @ seen[1], lse), dim=-1)
        own = slice(ranks.rank * heads, (ranks.rank + 1) * heads)
        states = torch.stack(tuple(ranks.all_gather(found)))[:, :, own]
        return self._merge(states[..., :-1], states[..., -1])

    def _shard(self, pages: Pages, pool: torch.Tensor) -> Shard:
        """All layers of a step share it."""
        if self._newest is None or self._newest[0] is not pages:
            ranks = self._context
            self._newest = (pages, Shard(pages, ranks.rank, ranks.size, pool.shape[1], pool.device))
        return self._newest[1]

"""What a model keeps per token: groups of layers, the size of their blocks, and which blocks they still read.

All groups share one pool of blocks of equal bytes. A group's block ``i`` covers its positions ``i * block_tokens`` to
``(i + 1) * block_tokens``. Numbers only; which block is where is known elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from energyopt.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Layers that read every position before the one they compute (multi-head, grouped or latent keys and values)."""

    block_tokens: int
    layers: tuple[int, ...] = ()

    def first_read(self, position: int) -> int:
        """The first block that is read to compute ``position`` and what follows it."""
        return 0


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers that read the position they compute and ``window - 1`` before it."""

    block_tokens: int
    window: int
    layers: tuple[int, ...] = ()

    def first_read(self, position: int) -> int:
        return max(0, position + 1 - self.window) // self.block_tokens


@dataclass(frozen=True, slots=True)
class ChunkedLocal:
    """Layers that read back to the last multiple of ``chunk``: nothing at all at the start of a chunk."""

    block_tokens: int
    chunk: int
    layers: tuple[int, ...] = ()

    def first_read(self, position: int) -> int:
        return position // self.chunk * self.chunk // self.block_tokens


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Layers with one state for everything before a position: block ``i`` holds the newest state within its span.

    To compute ``position`` a runner reads the state from block ``(position - 1) // block_tokens`` and writes the new
    one to the block of the last position that it computes: in place within a block, else into a fresh one.
    """

    block_tokens: int
    family: Literal["mamba", "gated_delta", "kda"] = "mamba"
    layers: tuple[int, ...] = ()

    def first_read(self, position: int) -> int:
        return max(0, position - 1) // self.block_tokens


GroupSpec = FullAttention | SlidingWindow | ChunkedLocal | RecurrentState


@dataclass(frozen=True)
class Layout:
    """The groups of a model and the granules of its prefix cache.

    ``match_tokens`` is the prefix-match unit: hits may end inside a block at a multiple of it, and the shared block is
    copied before it is written. None: hits end where every group's blocks end. Raises ConfigError for sizes that do
    not fit together.
    """

    groups: tuple[GroupSpec, ...]
    match_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError("A cache without a group of layers is not allowed: it must have at least 1.")
        for group in self.groups:
            sizes = {
                "block_tokens": group.block_tokens,
                "window": getattr(group, "window", 1),
                "chunk": getattr(group, "chunk", group.block_tokens),
            }
            for name, value in sizes.items():
                if value < 1:
                    raise ConfigError(f"{name} = {value} is not allowed: it must be at least 1.")
            if sizes["chunk"] % group.block_tokens:
                raise ConfigError(f"chunk = {sizes['chunk']} is not allowed: it must be whole blocks of its group.")
            if self.match_tokens is not None and (self.match_tokens < 1 or group.block_tokens % self.match_tokens):
                raise ConfigError(
                    f"match_tokens = {self.match_tokens} is not allowed: it must divide every group's block "
                    f"({', '.join(str(one.block_tokens) for one in self.groups)} tokens)."
                )

    @cached_property
    def unit(self) -> int:
        """Tokens that one hash covers."""
        return self.match_tokens or math.gcd(*(group.block_tokens for group in self.groups))

    @cached_property
    def grain(self) -> int:
        """Tokens of which every hit is a multiple: also the length of the shortest hit."""
        return self.match_tokens or math.lcm(*(group.block_tokens for group in self.groups))

    @cached_property
    def partial(self) -> bool:
        """Whether a hit may end inside a block."""
        return any(group.block_tokens > self.grain for group in self.groups)

    @cached_property
    def plain(self) -> bool:
        """Whether every layer reads every position: one group, whose blocks are never given up, copied or skipped."""
        return len(self.groups) == 1 and isinstance(self.groups[0], FullAttention)

    @cached_property
    def units_per_block(self) -> tuple[int, ...]:
        """Hashes in one block of each group."""
        return tuple(group.block_tokens // self.unit for group in self.groups)

    @cached_property
    def state_tokens(self) -> int | None:
        """The smallest block of a recurrent group: where states can be kept. None without such a group."""
        return min((g.block_tokens for g in self.groups if isinstance(g, RecurrentState)), default=None)

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """Blocks that a request needs at its fullest until it has ``num_tokens``, computed ``chunk`` at a time."""
        return sum(_peak(group, num_tokens, chunk) for group in self.groups)


def _peak(group: GroupSpec, num_tokens: int, chunk: int) -> int:
    whole = -(-num_tokens // group.block_tokens)
    if isinstance(group, FullAttention):
        return whole
    if isinstance(group, RecurrentState):
        return 2  # the state that is read and the one that is written
    reach = group.window - 1 if isinstance(group, SlidingWindow) else group.chunk - 1
    # A span of n tokens touches at most (n - 2) // size + 2 blocks, wherever it begins.
    return min(whole, (reach + chunk + group.block_tokens - 2) // group.block_tokens + 1)

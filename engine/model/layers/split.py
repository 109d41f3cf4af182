"""Which part of a layer's heads, rows and columns belongs to one of several ranks. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.errors import ConfigError
from engine.parallel.ports import Collective


def share(total: int, ranks: Collective) -> range:
    """The part of ``range(total)`` of this rank: consecutive, in order of the ranks, sizes that differ by at most 1."""
    return range(total * ranks.rank // ranks.size, total * (ranks.rank + 1) // ranks.size)


@dataclass(frozen=True, slots=True)
class Heads:
    """The query heads and the key/value heads of one rank; every query head's key head is among them."""

    query: range
    kv: range


def split_heads(heads: int, kv_heads: int, ranks: Collective) -> Heads:
    """Whole groups of heads to each rank or, where there are more ranks than key heads, a part of one group.

    Then neighbouring ranks hold copies of a key head. Raises ConfigError where heads would be cut.
    """
    low, high = sorted((kv_heads, ranks.size))
    if heads % ranks.size or high % low:
        raise ConfigError(
            f"tp = {ranks.size} is not allowed: {heads} attention heads and {kv_heads} key/value heads do not divide."
        )
    query = share(heads, ranks)
    group = heads // kv_heads
    return Heads(query, range(query.start // group, (query.stop - 1) // group + 1))


def rows_of(heads: range, head_dim: int) -> range:
    """The rows of a projection that make up ``heads``."""
    return range(heads.start * head_dim, heads.stop * head_dim)


def span(part: range) -> slice:
    return slice(part.start, part.stop)

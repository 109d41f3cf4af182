"""Block tables of a request: one per group of layers, grown, thinned and copied as the group reads and writes.

All functions take the group's spec and its table; the pool changes only where blocks are allocated or freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..request import NO_BLOCK, Request
from .blocks import BlockPool
from .layout import GroupSpec, Layout, RecurrentState


def tables_of(request: Request) -> tuple[list[int], ...]:
    """The request's tables in the order of the groups."""
    return (request.block_ids, *request.other_tables)


def held(table: Iterable[int]) -> list[int]:
    """The blocks in a table, without the gaps."""
    return [block for block in table if block != NO_BLOCK]


def missing(spec: GroupSpec, table: list[int], computed: int, target: int, shared: Callable[[int], bool]) -> int:
    """Blocks to allocate so that positions up to ``target`` can be written."""
    if not isinstance(spec, RecurrentState):
        return max(0, -(-target // spec.block_tokens) - len(table))
    index = (target - 1) // spec.block_tokens
    if index >= len(table):
        return 1
    return int(must_copy(spec, table, computed, index, shared))


def missing_in_all(layout: Layout, request: Request, target: int, pool: BlockPool) -> int:
    """``missing`` over all of a request's tables."""
    if layout.plain:
        return max(0, -(-target // layout.groups[0].block_tokens) - len(request.block_ids))
    computed, shared = request.num_computed, pool.is_shared
    tables = zip(layout.groups, tables_of(request), strict=True)
    return sum(missing(spec, table, computed, target, shared) for spec, table in tables)


def must_copy(spec: GroupSpec, table: list[int], computed: int, index: int, shared: Callable[[int], bool]) -> bool:
    """Whether the state in block ``index`` would be overwritten in place although others may want it as it is."""
    if not isinstance(spec, RecurrentState):
        return False  # appended, never overwritten
    within = computed > index * spec.block_tokens and table[index] != NO_BLOCK
    return within and shared(table[index])


def extend(spec: GroupSpec, table: list[int], target: int, pool: BlockPool) -> None:
    """Append the blocks that ``missing`` counted; a recurrent group skips to the block of the last position."""
    whole = -(-target // spec.block_tokens)
    if isinstance(spec, RecurrentState):
        if whole > len(table):
            table += [NO_BLOCK] * (whole - 1 - len(table))
            table += pool.allocate(1)
    elif whole > len(table):
        table += pool.allocate(whole - len(table))


def covers(spec: GroupSpec, table: list[int]) -> int:
    """Tokens that have their places in this table."""
    return len(table) * spec.block_tokens


def thin(table: list[int], start: int, stop: int, pool: BlockPool) -> None:
    """Give back the blocks from ``start`` to before ``stop``, last one first, and leave gaps."""
    pool.free(held(reversed(table[start:stop])))
    table[start:stop] = [NO_BLOCK] * len(table[start:stop])

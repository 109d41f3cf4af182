"""What can be tried: for each tuned operator the plans that its kernel takes, and the one that ``launch`` would choose.

Pure functions of architecture and problem. A plan that needs more shared memory than the architecture has is left out
here; one that the compiler refuses or that spills shows when it is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from .. import launch
from ..choices import Plan, Problem
from ..platform import Arch

MAX_PARTS = 64
LATENT_ROPE = 64
"""Of a latent key's columns, those that are no value: 64 in every published MLA model."""


def default_plan(arch: Arch, problem: Problem, multiprocessors: int) -> Plan:
    """The launch without a table. Raises ValueError for an operator that is not tuned."""
    return _of(problem).default(arch, problem, multiprocessors)


def candidates(arch: Arch, problem: Problem, multiprocessors: int) -> list[Plan]:
    """Every plan worth a measurement, the default first. Raises ValueError for an operator that is not tuned."""
    default = default_plan(arch, problem, multiprocessors)
    found = [default]
    for tile in _of(problem).tiles(arch, problem, default):
        for parts in _parts_near(default.parts):
            plan = replace(tile, parts=parts)
            if plan not in found:
                found.append(plan)
    return found


def permits(arch: Arch, problem: Problem, plan: Plan) -> bool:
    """Whether ``plan``, from a file, is one that this module could have proposed on some device of ``arch``.

    Raises ValueError for a number format that does not exist.
    """
    shape = problem.shape
    grouped = shape.kv_heads > 0 and shape.heads % shape.kv_heads == 0
    if problem.op not in OPS or shape.width < 1 or grouped == (problem.op == "mla_decode"):
        return False
    default = default_plan(arch, problem, arch.multiprocessors)
    parts_known = plan.parts == 0 if default.parts == 0 else plan.parts in _powers(MAX_PARTS)
    tiles = {replace(tile, parts=0) for tile in (default, *_of(problem).tiles(arch, problem, default))}
    return parts_known and replace(plan, parts=0) in tiles


class _Op:
    """One operator's plans: ``default(arch, problem, multiprocessors)`` and ``tiles(arch, problem, default)``."""

    def __init__(
        self, default: Callable[[Arch, Problem, int], Plan], tiles: Callable[[Arch, Problem, Plan], Iterator[Plan]]
    ) -> None:
        self.default, self.tiles = default, tiles


def _of(problem: Problem) -> _Op:
    try:
        return OPS[problem.op]
    except KeyError as error:
        raise ValueError(f"The operator {problem.op!r} is not tuned; tuned are {', '.join(OPS)}.") from error


def itemsize(problem: Problem) -> int:
    """Bytes of one element. Raises ValueError for a type that torch does not have."""
    kind = getattr(torch, problem.shape.dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{problem.shape.dtype!r} is no number format.")
    return kind.itemsize


def _split(tile: launch.Attention, programs: int, problem: Problem, multiprocessors: int) -> Plan:
    parts = launch.splits(programs, problem.length, tile.keys, multiprocessors)
    return Plan(tile.queries, tile.keys, tile.warps, tile.stages, parts)


def _decode_default(arch: Arch, problem: Problem, multiprocessors: int) -> Plan:
    shape = problem.shape
    tile = launch.decode_attention(arch, shape.heads // shape.kv_heads, shape.width, itemsize(problem))
    tiles = launch.ceil_div(shape.heads // shape.kv_heads, tile.queries)
    return _split(tile, problem.rows * shape.kv_heads * tiles, problem, multiprocessors)


def _latent_default(arch: Arch, problem: Problem, multiprocessors: int) -> Plan:
    shape = problem.shape
    tile = launch.latent_attention(arch, shape.heads, shape.width - LATENT_ROPE, itemsize(problem))
    return _split(tile, problem.rows * launch.ceil_div(shape.heads, tile.queries), problem, multiprocessors)


def _prefill_default(arch: Arch, problem: Problem, multiprocessors: int) -> Plan:
    tile = launch.prefill_attention(arch, problem.shape.width, itemsize(problem))
    return Plan(tile.queries, tile.keys, tile.warps, tile.stages)


def _norm_default(arch: Arch, problem: Problem, multiprocessors: int) -> Plan:
    tile = launch.elementwise(arch, problem.shape.width, problem.rows)
    return Plan(tile.rows, tile.columns, tile.warps, 1)


def _decode_tiles(arch: Arch, problem: Problem, default: Plan) -> Iterator[Plan]:
    """The rows are the heads that share a key head; both keys and values wait in shared memory."""
    for keys, warps, stages in itertools.product((32, 64, 128), (4, 8), _stages(arch)):
        if _fits(arch, problem, 2 * stages * keys):
            yield Plan(default.rows, keys, warps, stages)


def _latent_tiles(arch: Arch, problem: Problem, default: Plan) -> Iterator[Plan]:
    for heads, keys, stages in itertools.product((16, 32), (16, 32, 64), _stages(arch)):
        if stages * keys * problem.shape.width * itemsize(problem) <= arch.shared_bytes:
            yield Plan(heads, keys, 8, stages)


def _prefill_tiles(arch: Arch, problem: Problem, default: Plan) -> Iterator[Plan]:
    for queries, keys, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), _stages(arch)):
        if _fits(arch, problem, queries + 2 * stages * keys):
            yield Plan(queries, keys, warps, stages)


def _norm_tiles(arch: Arch, problem: Problem, default: Plan) -> Iterator[Plan]:
    for rows, warps in itertools.product((1, 2, 4), (1, 2, 4, 8, 16)):
        if rows * default.columns <= 1 << 16:
            yield Plan(rows, default.columns, warps, 1)


def _stages(arch: Arch) -> tuple[int, ...]:
    return (1, 2) if arch.is_amd else (2, 3, 4)


def _fits(arch: Arch, problem: Problem, lines: int) -> bool:
    """Whether ``lines`` heads' columns fit into shared memory at once."""
    return lines * launch.power_of_two(problem.shape.width) * itemsize(problem) <= arch.shared_bytes


def _parts_near(parts: int) -> tuple[int, ...]:
    """Half, as much and twice as many parts; 0 says that the operator has none."""
    if parts == 0:
        return (0,)
    return tuple(sorted({max(1, parts // 2), parts, min(MAX_PARTS, 2 * parts)}))


def _powers(most: int) -> set[int]:
    return {1 << bit for bit in range(most.bit_length())}


OPS = {
    "paged_decode": _Op(_decode_default, _decode_tiles),
    "mla_decode": _Op(_latent_default, _latent_tiles),
    "paged_prefill": _Op(_prefill_default, _prefill_tiles),
    "add_rms_norm": _Op(_norm_default, _norm_tiles),
}

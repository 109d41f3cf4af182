"""Block sizes, warps and stages as pure functions of architecture and shape.

Each constant names the evidence behind it. Evidence marked *compiled* is what the offline compiler reports (registers,
spills, shared memory; ``tests/kernels/budget.json`` holds the numbers); no constant here rests on a timing yet, and
``tests/bench/kernels.py`` is the script that would give one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .platform import Arch

MIN_DOT = 16
"""The least extent of a matrix product's tile that every target's matrix unit takes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A tile of ``rows`` whole rows, ``columns`` wide (a power of two), by ``warps`` warps."""

    rows: int
    columns: int
    warps: int


@dataclass(frozen=True, slots=True)
class Attention:
    """``queries`` rows of queries against ``keys`` keys at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """An output tile ``m`` x ``n``, reduced ``k`` at a time."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value`` (and at least 1)."""
    return 1 << max(0, value - 1).bit_length()


def ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def elementwise(arch: Arch, width: int, rows: int) -> Rows:
    """For kernels that read each row once: norms, rope, swiglu, merges.

    A program takes about 4096 elements: with 4 to 8 warps of 16-byte loads each thread holds 16 to 32 of them, which
    leaves registers to spare (*compiled*: under 64 on sm_90 and gfx942). Wider rows take more warps, not more programs,
    since a row's sum must stay in one program.
    """
    columns = power_of_two(width)
    height = max(1, min(4096 // columns, power_of_two(ceil_div(rows, arch.multiprocessors))))
    threads = max(1, columns * height // 16)
    return Rows(height, columns, min(16, max(1, power_of_two(threads) // arch.warp)) if arch.warp > 1 else 1)


def decode_attention(arch: Arch, group: int, head_dim: int, itemsize: int) -> Attention:
    """One query token per request; the ``group`` query heads that share a key head are the rows.

    Decode reads each key once, so a tile only has to be deep enough to keep loads in flight. *compiled*: 64 keys of
    head_dim 128 in 16 bits in three stages take 38 KiB and 117 registers on sm_90, which lets four programs share a
    multiprocessor; one stage takes 16 KiB of gfx942's 64 and 134 registers.
    """
    queries = max(MIN_DOT, power_of_two(group))
    padded = power_of_two(head_dim)
    stages = 1 if arch.is_amd else 3
    keys = 64
    while keys > MIN_DOT and 2 * stages * keys * padded * itemsize > arch.shared_bytes * 3 // 4:
        keys //= 2
    while stages > 1 and 2 * stages * keys * padded * itemsize > arch.shared_bytes * 3 // 4:
        stages -= 1
    return Attention(queries, keys, 4 if padded <= 256 else 8, stages)


def latent_attention(arch: Arch, heads: int, latent: int, itemsize: int) -> Attention:
    """MLA decode: every head reads the same keys, so a tile takes as many heads as the registers hold.

    The accumulator is heads x latent in float32. *compiled*, latent 512 in 16 bits over 8 warps: 32 heads x 32 keys
    take 170 registers and 74 KiB on sm_90 without spills, 64 heads spill 88 bytes; on gfx942 32 x 32 spills 139
    registers and 32 x 16 takes 200 without spills.
    """
    queries = min(32, max(MIN_DOT, power_of_two(heads)))
    stages = 1 if arch.is_amd else 3
    keys = 16 if arch.is_amd else 32
    while keys > MIN_DOT and stages * keys * power_of_two(latent) * itemsize > arch.shared_bytes * 3 // 4:
        keys //= 2
    while stages > 1 and stages * keys * power_of_two(latent) * itemsize > arch.shared_bytes * 3 // 4:
        stages -= 1
    return Attention(queries, keys, 8, stages)


def prefill_attention(arch: Arch, head_dim: int, itemsize: int) -> Attention:
    """Many query tokens per request.

    The accumulator (queries x head_dim in float32) lives in registers: 128 x 128 over 8 warps is 64 a thread. Larger
    heads halve the queries, smaller tiles of keys keep shared memory within the architecture (*compiled*: no spills).
    """
    padded = power_of_two(head_dim)
    queries = 128 if padded <= 128 else 64 if padded <= 256 else 32
    if itemsize > 2:
        queries = max(MIN_DOT, queries // 2)
    stages = 1 if arch.is_amd else 2
    keys = 64 if padded <= 128 else 32
    room = arch.shared_bytes * 3 // 4 // (padded * itemsize)
    while keys > MIN_DOT and queries + 2 * stages * keys > room:
        keys //= 2
    while stages > 1 and queries + 2 * stages * keys > room:
        stages -= 1
    while queries > MIN_DOT and queries + 2 * stages * keys > room:
        queries //= 2
    return Attention(queries, keys, 8 if queries * padded >= 128 * 64 else 4, stages)


def latent_prefill_attention(arch: Arch, latent: int, itemsize: int) -> Attention:
    """MLA with many query tokens per request: one key is the value too, so a tile of keys is held once.

    The accumulator is queries x latent in float32, as in ``latent_attention``.
    """
    stages = 1 if arch.is_amd else 2
    keys = 16 if arch.is_amd else 32
    queries = 32
    while (
        queries > MIN_DOT and (queries + stages * keys) * power_of_two(latent) * itemsize > arch.shared_bytes * 3 // 4
    ):
        queries, keys = queries // 2, max(MIN_DOT, keys // 2)
    return Attention(queries, keys, 8, stages)


def least_attention_bytes(arch: Arch, width: int, latent: int, itemsize: int) -> int:
    """Shared memory of the smallest tile of attention, 16 queries by 16 keys; ``latent`` as in ``demand.Demand``.

    *compiled*: NVIDIA holds queries, keys and values (98816 bytes at width 1024 in 16 bits, 99392 at 512 in 32), AMD
    one of them at a time (16384 bytes at a latent width of 512 in 16 bits).
    """
    tile = MIN_DOT * power_of_two(latent or width) * itemsize
    turned = MIN_DOT * (width - latent) * itemsize if latent else 0
    return (1 if arch.is_amd else 3) * tile + turned + 2048


def splits(programs: int, tokens: int, keys: int, multiprocessors: int) -> int:
    """Into how many parts to cut each request's keys, so that ``programs`` requests x heads fill the device.

    Two programs for each multiprocessor hide each other's latency; a part shorter than four tiles of ``keys`` costs
    more in merging than it saves, and 64 parts bound the size of the merge. A power of two: the count is compiled in,
    and seven kernels are few enough to have.
    """
    wanted = power_of_two(ceil_div(2 * multiprocessors, max(1, programs)))
    useful = max(1, tokens // (4 * keys))
    return max(1, min(wanted, power_of_two(useful + 1) // 2, 64))


def gemm(arch: Arch, rows: int, itemsize: int) -> Gemm:
    """Tiles of a matrix product whose weights are read once: few rows take the narrowest tile that a matrix unit
    allows.

    *compiled*: 128 x 128 x 64 in 16 bits over 8 warps takes 96 KiB in three stages and 112 registers on sm_90; gfx942,
    with 64 KiB in all, gets one stage and 88 registers. 32-bit inputs halve the extents.
    """
    m = min(128, max(MIN_DOT, power_of_two(rows)))
    n = 128 if m >= 64 else 64
    k = 64
    if itemsize > 2:
        m, n, k = min(m, 64), 64, 32
    stages = 1 if arch.is_amd and arch.shared_bytes <= 64 * 1024 else (2 if arch.is_amd else 3)
    return Gemm(m, n, k, 8 if m * n >= 128 * 64 else 4, stages)


def vector_rows(arch: Arch, outputs: int) -> Rows:
    """A product with one row: a program takes a few outputs, 512 inputs at a time (an 8-byte load a thread in 4 bits).

    Fewer outputs a program where there are few, so that every multiprocessor has at least two programs.
    """
    rows = 4 if outputs >= 8 * arch.multiprocessors else 1
    return Rows(rows, 512, 2 if arch.warp == 64 else 4)


def vocabulary(arch: Arch, tokens: int) -> Rows:
    """Sampling goes over a row many times with one program, so it takes many warps, eight logits a thread.

    *compiled* on sm_90: 32 warps leave 64 registers a thread and spill 16 bytes; 16 warps spill nothing.
    """
    warps = 8 if arch.is_amd else 16
    return Rows(1, min(4096, power_of_two(tokens)), warps)


def copies_per_launch(arch: Arch) -> int:
    """How many block copies one launch may carry.

    ROCm's host-memory copies stall the queue behind them when a launch is long, so those are cut into pieces that
    other work can slip between; CUDA's grid limit is far away.
    """
    return 1024 if arch.is_amd else 1 << 20

"""Each tuned operator with tensors of a problem's extents, ready to run any plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .. import launch
from ..choices import Plan, Problem
from ..paged_decode import DecodeOptions, mla_decode, paged_decode
from ..paged_prefill import paged_prefill
from ..platform import Arch
from ..rms_norm import add_rms_norm
from .space import LATENT_ROPE, itemsize

Run = Callable[[Plan], torch.Tensor]
"""Run one plan; the output."""

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class _Place:
    device: torch.device
    arch: Arch

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)


def build(problem: Problem, device: torch.device, arch: Arch, seed: int) -> Run:
    """``problem`` on ``device``, with numbers that ``seed`` decides. Raises KeyError for an operator not tuned."""
    return _BUILDERS[problem.op](_Place(device, arch), problem, seed)


def bytes_of(problem: Problem) -> int:
    """Of the tensors that a run reads."""
    shape, size = problem.shape, itemsize(problem)
    if problem.op == "add_rms_norm":
        return int(2 * problem.rows * shape.width * size)
    requests = 1 if problem.op == "paged_prefill" else problem.rows
    keys = requests * problem.length * shape.width * (2 * shape.kv_heads or 1)
    return int((keys + problem.rows * shape.heads * shape.width) * size)


def _pages(
    place: _Place, problem: Problem, requests: int, tail: tuple[int, ...], seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pool of random keys, a table of its blocks in no order, and lengths that fill it."""
    generator, kind = place.generator(seed), getattr(torch, problem.shape.dtype)
    per = launch.ceil_div(problem.length, BLOCK_TOKENS)
    pool = torch.randn(requests * per, BLOCK_TOKENS, *tail, generator=generator, device=place.device, dtype=kind)
    table = torch.randperm(requests * per, generator=generator, device=place.device).int().view(requests, per)
    return pool, table, torch.full((requests,), problem.length, dtype=torch.int32, device=place.device)


def _query(place: _Place, problem: Problem, seed: int) -> torch.Tensor:
    shape, kind = problem.shape, getattr(torch, problem.shape.dtype)
    size = (problem.rows, shape.heads, shape.width)
    return torch.randn(size, generator=place.generator(seed), device=place.device, dtype=kind)


def _decode(place: _Place, problem: Problem, seed: int) -> Run:
    shape = problem.shape
    pool, table, lengths = _pages(place, problem, problem.rows, (2, shape.kv_heads, shape.width), seed)
    query, window = _query(place, problem, seed), problem.length if shape.windowed else 0

    def run(plan: Plan) -> torch.Tensor:
        options = DecodeOptions(window=window, parts=plan.parts, tile=plan.attention())
        scale = shape.width**-0.5
        return paged_decode(query, pool[:, :, 0], pool[:, :, 1], table, lengths, scale, None, options, arch=place.arch)[
            0
        ]

    return run


def _latent(place: _Place, problem: Problem, seed: int) -> Run:
    pool, table, lengths = _pages(place, problem, problem.rows, (1, problem.shape.width), seed)
    query = _query(place, problem, seed)

    def run(plan: Plan) -> torch.Tensor:
        options = DecodeOptions(parts=plan.parts, tile=plan.attention())
        return mla_decode(query, pool, table, lengths, 0.1, LATENT_ROPE, options, arch=place.arch)[0]

    return run


def _prefill(place: _Place, problem: Problem, seed: int) -> Run:
    """One request whose last ``rows`` tokens are new, or all of them where it is no longer."""
    shape = problem.shape
    pool, table, lengths = _pages(place, problem, 1, (2, shape.kv_heads, shape.width), seed)
    query = _query(place, problem, seed)[: problem.length]
    starts = torch.tensor([0, len(query)], dtype=torch.int32, device=place.device)
    window = problem.length if shape.windowed else 0

    def run(plan: Plan) -> torch.Tensor:
        return paged_prefill(
            query, pool[:, :, 0], pool[:, :, 1], table, starts, lengths, len(query), shape.width**-0.5, None, window,
            tile=plan.attention(), arch=place.arch,
        )[0]  # fmt: skip

    return run


def _norm(place: _Place, problem: Problem, seed: int) -> Run:
    generator, kind = place.generator(seed), getattr(torch, problem.shape.dtype)
    size = (problem.rows, problem.shape.width)
    x, residual = (torch.randn(size, generator=generator, device=place.device, dtype=kind) for _ in range(2))
    weight = torch.randn(size[1], generator=generator, device=place.device, dtype=kind)

    def run(plan: Plan) -> torch.Tensor:
        return add_rms_norm(x, residual, weight, 1e-5, tile=plan.tile(), arch=place.arch)[0]

    return run


_BUILDERS: dict[str, Callable[[_Place, Problem, int], Run]] = {
    "paged_decode": _decode,
    "mla_decode": _latent,
    "paged_prefill": _prefill,
    "add_rms_norm": _norm,
}

"""Which experts a token goes to, and in which order the experts take their tokens.

``route`` scores experts by softmax or sigmoid of the router's logits, takes the ``top_k`` highest (after adding a
bias that only chooses, as DeepSeek-V3's load balancing does) and weighs them by their scores, made to sum to one
where asked. ``plan_groups`` sorts the (token, choice) pairs by expert into tiles that hold one expert each; it runs
on the device without asking it for a number, so it can be captured in a graph.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import launch
from .ops import Scoring


@triton.jit
def route_kernel(
    logits_ptr, bias_ptr, weights_ptr, ids_ptr, logits_row, experts,
    TOP_K: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr,
    SIGMOID: tl.constexpr, BIASED: tl.constexpr, RENORMALIZE: tl.constexpr,
):  # fmt: skip
    """One token a program: take the highest expert ``TOP_K`` times; of equal ones the first."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    there = expert < experts
    logits = tl.load(logits_ptr + row * logits_row + expert, mask=there, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = tl.where(there, tl.sigmoid(logits), 0.0)
    else:
        raised = tl.where(there, tl.exp(logits - tl.max(logits, axis=0)), 0.0)
        scores = raised / tl.sum(raised, axis=0)
    rank = scores
    if BIASED:
        rank += tl.load(bias_ptr + expert, mask=there, other=0.0).to(tl.float32)
    rank = tl.where(there, rank, float("-inf"))
    choice = tl.arange(0, CHOICES)
    weights = tl.zeros((CHOICES,), tl.float32)
    ids = tl.zeros((CHOICES,), tl.int32)
    for turn in tl.static_range(TOP_K):
        best = tl.argmax(rank, axis=0).to(tl.int32)
        weight = tl.sum(tl.where(expert == best, scores, 0.0), axis=0)
        weights = tl.where(choice == turn, weight, weights)
        ids = tl.where(choice == turn, best, ids)
        rank = tl.where(expert == best, float("-inf"), rank)
    if RENORMALIZE:
        weights = weights / tl.sum(weights, axis=0)
    tl.store(weights_ptr + row * TOP_K + choice, weights, mask=choice < TOP_K)
    tl.store(ids_ptr + row * TOP_K + choice, ids, mask=choice < TOP_K)


def route(
    logits: torch.Tensor, top_k: int, scoring: Scoring = "softmax", bias: torch.Tensor | None = None,
    *, renormalize: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Choose among experts by ``logits`` (rows, experts): weights (rows, top_k) float32, ids (rows, top_k) int32,
    best first."""
    rows, experts = logits.shape
    if not 0 < top_k <= experts:
        raise ValueError(f"{top_k} of {experts} experts cannot be chosen.")
    weights = torch.empty((rows, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, top_k), dtype=torch.int32, device=logits.device)
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    if rows:
        route_kernel[(rows,)](
            logits, logits if bias is None else bias, weights, ids, logits.stride(0), experts, TOP_K=top_k,
            CHOICES=launch.power_of_two(top_k), EXPERTS=launch.power_of_two(experts), SIGMOID=scoring == "sigmoid",
            BIASED=bias is not None, RENORMALIZE=renormalize, num_warps=1,
        )  # fmt: skip
    return weights, ids


@dataclass(frozen=True, slots=True)
class Groups:
    """Pairs sorted by expert. ``pairs`` (tiles * block,) numbers (token, choice) pairs, ``count`` (= rows * top_k)
    standing for none; ``experts`` (tiles,) names each tile's expert, -1 where the tile is empty."""

    pairs: torch.Tensor
    experts: torch.Tensor
    count: int
    block: int


def plan_groups(ids: torch.Tensor, experts: int, block: int) -> Groups:
    """Sort the pairs of ``ids`` (rows, top_k) by expert, each expert's run filled up to whole tiles of ``block``."""
    flat = ids.flatten().long()
    count = len(flat)
    tiles = min(count, launch.ceil_div(count, block) + experts)
    sizes = torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add_(0, flat, torch.ones_like(flat))
    padded = (sizes + block - 1) // block * block
    starts, ends = sizes.cumsum(0) - sizes, padded.cumsum(0)
    ordered, order = flat.sort(stable=True)
    place = torch.arange(count, device=ids.device) - starts[ordered] + (ends - padded)[ordered]
    pairs = torch.full((tiles * block,), count, dtype=torch.int32, device=ids.device)
    pairs[place] = order.int()
    first = torch.arange(tiles, device=ids.device) * block
    owner = torch.searchsorted(ends, first, right=True)
    return Groups(pairs, torch.where(owner < experts, owner, -1).int(), count, block)

"""Draw the next token on the device: temperature, top-k, top-p, min-p and a seed, in one kernel and without a sort.

With ``gap_i = (max logit - logit_i) / temperature`` a filter keeps the tokens up to some gap, so each is a threshold:

- top-k: the smallest gap within which at least k tokens lie (ties at the threshold all stay);
- top-p: of what top-k kept, the smallest gap within which lies at least the share p of the probability;
- min-p: ``gap <= -log(min_p)``, tokens at least min_p times as likely as the likeliest.

Gaps are not negative, so their bit patterns order as they do, and halving the range of patterns finds a threshold
exactly in 31 passes over a row that lies in the cache. The draw adds Gumbel noise to the log-probabilities and takes
the highest (Gumbel, 1954). Noise comes from Philox keyed by the request's seed and counted by (token, step): the same
seed gives the same text, whatever the batch around it. Temperature 0 takes the likeliest token, of equal ones the
first; one above 0 counts as at least 1e-30.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import launch
from .platform import Arch, arch_of


@dataclass(frozen=True, slots=True)
class Filters:
    """One entry a row: ``temperature`` float32 (0 is greedy), ``top_k`` int32 (0 is off), ``top_p`` float32 (1 is
    off), ``min_p`` float32 (0 is off), ``seed`` int64, ``step`` int32 (how many tokens this request drew before)."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    step: torch.Tensor


@triton.jit
def _gaps(logits_ptr, start, vocabulary, top, inverse, TILE: tl.constexpr):
    """One tile's gaps and their bit patterns; infinite outside the vocabulary."""
    token = start + tl.arange(0, TILE)
    logit = tl.load(logits_ptr + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    gap = (top - logit) * inverse
    gap = tl.where(logit > float("-inf"), gap, float("inf"))
    return token, gap, gap.to(tl.int32, bitcast=True)


@triton.jit
def _measure(logits_ptr, vocabulary, top, inverse, limit, bound, MASS: tl.constexpr, TILE: tl.constexpr):
    """How many tokens, or how much ``exp(-gap)``, lie within both ``limit`` and ``bound`` (bit patterns)."""
    sums = tl.zeros((TILE,), tl.float32)
    for start in range(0, vocabulary, TILE):
        _, gap, bits = _gaps(logits_ptr, start, vocabulary, top, inverse, TILE)
        sums += tl.where((bits <= limit) & (bits <= bound), tl.exp(-gap) if MASS else 1.0, 0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def _threshold(logits_ptr, vocabulary, top, inverse, bound, wanted, MASS: tl.constexpr, TILE: tl.constexpr):
    """The smallest bit pattern within which the measure reaches ``wanted``; ``bound`` where it never does."""
    low = tl.zeros((), tl.int32)
    high = bound
    while low < high:
        middle = low + (high - low) // 2
        enough = _measure(logits_ptr, vocabulary, top, inverse, middle, bound, MASS, TILE) >= wanted
        low = tl.where(enough, low, middle + 1)
        high = tl.where(enough, middle, high)
    return high


@triton.jit
def sample_kernel(
    logits_ptr, tokens_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, step_ptr,
    logits_row, vocabulary, TILE: tl.constexpr,
):  # fmt: skip
    """One row a program: the highest logit, the thresholds that are asked for, the draw."""
    infinite: tl.constexpr = 0x7F800000
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_row
    temperature = tl.load(temperature_ptr + row)
    tops = tl.full((TILE,), float("-inf"), tl.float32)
    for start in range(0, vocabulary, TILE):
        token = start + tl.arange(0, TILE)
        logit = tl.load(logits_ptr + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
        tops = tl.maximum(tops, logit)
    top = tl.max(tops, axis=0)
    greedy = temperature <= 0.0
    inverse = 1.0 / tl.where(greedy, 1.0, tl.maximum(temperature, 1e-30))  # infinite times no gap would be no number
    bound = tl.where(greedy, 0, infinite - 1)
    top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    if (top_k > 0) & (top_k < vocabulary):
        bound = _threshold(logits_ptr, vocabulary, top, inverse, bound, top_k.to(tl.float32), False, TILE)
    if top_p < 1.0:
        whole = _measure(logits_ptr, vocabulary, top, inverse, bound, bound, True, TILE)
        bound = _threshold(logits_ptr, vocabulary, top, inverse, bound, whole * top_p, True, TILE)
    if min_p > 0.0:
        bound = tl.minimum(bound, tl.maximum(0.0 - tl.log(min_p), 0.0).to(tl.int32, bitcast=True))
    seed, step = tl.load(seed_ptr + row), tl.load(step_ptr + row)
    best, chosen = tl.full((TILE,), float("-inf"), tl.float32), tl.zeros((TILE,), tl.int32)
    for start in range(0, vocabulary, TILE):
        token, gap, bits = _gaps(logits_ptr, start, vocabulary, top, inverse, TILE)
        nothing = token * 0
        word, _, _, _ = tl.philox(seed, token, nothing + step, nothing, nothing)
        uniform = ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        noise = tl.where(greedy, 0.0, -tl.log(-tl.log(uniform)))
        score = tl.where(bits <= bound, noise - gap, float("-inf"))
        chosen = tl.where(score > best, token, chosen)
        best = tl.maximum(best, score)
    winner = tl.max(best, axis=0)
    first = tl.min(tl.where(best == winner, chosen, vocabulary), axis=0)
    tl.store(tokens_ptr + row, tl.minimum(first, vocabulary - 1).to(tl.int64))


def sample(logits: torch.Tensor, filters: Filters, *, arch: Arch | None = None) -> torch.Tensor:
    """One token for each row of ``logits`` (rows, vocabulary), as (rows,) int64. A token at -inf is never drawn."""
    rows, vocabulary = logits.shape
    tile = launch.vocabulary(arch or arch_of(logits.device), vocabulary)
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        sample_kernel[(rows,)](
            logits, tokens, filters.temperature, filters.top_k, filters.top_p, filters.min_p, filters.seed,
            filters.step, logits.stride(0), vocabulary, TILE=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
    return tokens

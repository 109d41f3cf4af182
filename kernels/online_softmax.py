"""The step that both attention kernels share: take in one tile of scores without having seen the others.

For each row it keeps the highest score ``top``, ``total = sum exp2(score - top)`` and ``acc = sum exp2(score - top)
value`` (Milakov and Gimelshein, 2018). Scores come multiplied by ``log2 e``, since GPUs raise 2, not e, to a power.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
"""What scores are multiplied by before a launch."""


@triton.jit
def start_rows(sinks_ptr, head, live, counted, SINKS: tl.constexpr, ROWS: tl.constexpr):
    """``top`` and ``total`` before any key: nothing, or the head's sink, a score without a value, where ``counted``."""
    log2_e: tl.constexpr = 1.4426950408889634
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if SINKS:
        sink = tl.load(sinks_ptr + head, mask=live, other=0.0).to(tl.float32) * log2_e
        top = tl.where(counted, sink, top)
        total = tl.where(counted, 1.0, total)
    return top, total


@triton.jit
def take_scores(scores, top, total, acc):
    """Gives the tile's weights and the three sums after it. A row whose scores are all -inf stays as it is."""
    higher = tl.maximum(top, tl.max(scores, axis=1))
    safe = tl.where(higher > float("-inf"), higher, 0.0)
    weights = tl.exp2(scores - safe[:, None])
    kept = tl.exp2(top - safe)
    return weights, higher, total * kept + tl.sum(weights, axis=1), acc * kept[:, None]


@triton.jit
def finish_rows(top, total, acc):
    """The output and the natural log-sum-exp: 0 and -inf for a row that saw no key."""
    ln_2: tl.constexpr = 0.6931471805599453
    some = total > 0.0
    divisor = tl.where(some, total, 1.0)
    return acc / divisor[:, None], tl.where(some, (top + tl.log2(divisor)) * ln_2, float("-inf"))

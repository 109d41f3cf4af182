"""How the tokens of an answer are spread over the chunks in which they came."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def spread_tokens(count: int, sizes: Sequence[int], totals: Sequence[int | None]) -> tuple[list[int], bool]:
    """Tokens of each chunk, and whether that is known rather than guessed.

    ``sizes`` are characters; ``totals`` are the tokens so far as the server said beside each chunk, if it did. Known:
    the server said so, or there are as many chunks as tokens. Otherwise by size with largest remainders, the first
    chunk at least one, because it made the first token.
    """
    if not sizes:
        return [], count == 0
    told = [total for total in totals if total is not None]
    if len(told) == len(totals) and told == sorted(told) and told[-1] <= count and told[0] >= 1:
        shares = [told[0], *(later - earlier for earlier, later in itertools.pairwise(told))]
        shares[-1] += count - told[-1]
        return shares, True
    if count == len(sizes):
        return [1] * count, True
    return _by_size(count, sizes), False


def _by_size(count: int, sizes: Sequence[int]) -> list[int]:
    if count < 1:
        return [0] * len(sizes)
    whole = sum(sizes)
    floor = 1 if count >= len(sizes) else 0
    spare = count - floor * len(sizes)
    exact = [spare * size / whole for size in sizes]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda index: (shares[index] - exact[index], index))
    for index in by_remainder[: spare - sum(shares)]:
        shares[index] += 1
    shares = [share + floor for share in shares]
    if not shares[0]:
        largest = max(range(len(shares)), key=lambda index: shares[index])
        shares[largest] -= 1
        shares[0] = 1
    return shares

"""Recompute or load: how much of a prefix that lies in a lower tier is worth fetching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from .linear import LinearCost

_EXPLORE = 32
"""Every so many-th refusal of a tier is not heeded: one that became faster would never be noticed otherwise."""


class Chooser(Protocol):
    """A policy over tier names; it sees no keys and does no I/O."""

    def worth_loading(self, tiers: Sequence[str]) -> int:
        """Of a prefix whose blocks lie in ``tiers``, how many blocks from its head to load; the rest is computed."""
        ...

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        """Whether to load a block from each of ``tiers``, all or none, to save the computing of ``tokens``."""
        ...


class LoadAlways:
    """Loads whatever is found."""

    def worth_loading(self, tiers: Sequence[str]) -> int:
        return len(tiers)

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        return True


class LoadIfCheaper:
    """Loads the head of a prefix that makes loading plus computing cheapest, in one measure: seconds or joules.

    ``compute`` is the cost of tokens, ``loads`` that of bytes by tier; both go on learning. As long as one of them
    is not known everything is loaded, which is how it becomes known.
    """

    def __init__(
        self, compute: LinearCost, loads: Mapping[str, LinearCost], *, block_tokens: int, block_bytes: int
    ) -> None:
        self._compute = compute
        self._loads = loads
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._refusals: Counter[str] = Counter()

    def worth_loading(self, tiers: Sequence[str]) -> int:
        costs = {cut: self._cost(tiers, cut) for cut in _cuts(tiers)}
        known = {cut: cost for cut, cost in costs.items() if cost is not None}
        if len(known) < len(costs):
            return len(tiers)
        best = min(known, key=lambda cut: (known[cut], -cut))
        if best == len(tiers):
            return best
        return len(tiers) if self._explores(tiers[best:]) else best

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        each, loading = self._compute.slope, self._loading(tiers)
        return each is None or loading is None or loading <= each * tokens or self._explores(tiers)

    def _explores(self, refused: Sequence[str]) -> bool:
        """Whether this refusal of tiers is one of those that are not heeded.

        Each tier is counted alone: where one refusal regularly follows another, a common count would always fall on
        the same of the two.
        """
        self._refusals.update(set(refused))
        due = [tier for tier, times in self._refusals.items() if times >= _EXPLORE]
        for tier in due:
            del self._refusals[tier]
        return bool(due)

    def _cost(self, tiers: Sequence[str], cut: int) -> float | None:
        """Of loading ``cut`` blocks and computing the others; one more block costs no new step."""
        each, loading = self._compute.slope, self._loading(tiers[:cut])
        if each is None or loading is None:
            return None
        return each * self._block_tokens * (len(tiers) - cut) + loading

    def _loading(self, tiers: Sequence[str]) -> float | None:
        """Of a block from each of ``tiers``; None where one of them is not known."""
        total = 0.0
        for tier, blocks in Counter(tiers).items():
            known = self._loads.get(tier)
            cost = None if known is None else known.of(blocks * self._block_bytes)
            if cost is None:
                return None
            total += cost
        return total


def _cuts(tiers: Sequence[str]) -> list[int]:
    """Where it can be worth to stop: before everything, between two tiers, after everything."""
    return [0, *(at for at, (left, right) in enumerate(pairwise(tiers), 1) if left != right), len(tiers)]

"""Recompute or load: how much of a prefix that lies in a lower tier is worth fetching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Chooser(Protocol):
    """A policy over tier names; it sees no keys and does no I/O."""

    def worth_loading(self, tiers: Sequence[str]) -> int:
        """Of a prefix whose blocks lie in ``tiers``, how many blocks from its head to load; the rest is computed."""
        ...


class LoadAlways:
    """Loads whatever is found."""

    def worth_loading(self, tiers: Sequence[str]) -> int:
        return len(tiers)

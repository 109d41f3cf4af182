"""Measured launches, looked up by operator, shape, and buckets of rows and length.

A lookup depends on shapes alone, never on what is in a tensor, so it is the same each time a captured graph is
replayed. Where nothing was measured the answer is None and ``launch`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from . import launch

PlanField = Literal["rows", "columns", "warps", "stages", "parts"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a use never changes while a model is loaded. ``kv_heads`` 0 stands for latent attention, where ``width``
    is that of a key; norms have one head."""

    heads: int
    kv_heads: int
    width: int
    dtype: str
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to launch an operator: a tile of ``rows`` by ``columns`` (queries by keys), ``warps``, pipeline
    ``stages``, and ``parts`` into which the keys are cut (1: not at all; 0: it is not for the plan to say)."""

    rows: int
    columns: int
    warps: int
    stages: int
    parts: int = 0

    def attention(self) -> launch.Attention:
        return launch.Attention(self.rows, self.columns, self.warps, self.stages)

    def tile(self) -> launch.Rows:
        return launch.Rows(self.rows, self.columns, self.warps)

    def __str__(self) -> str:
        cut = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"{self.rows} x {self.columns}, {_some(self.warps, 'warp')}, {_some(self.stages, 'stage')}{cut}"

    def as_dict(self) -> dict[PlanField, int]:
        tile: dict[PlanField, int] = {"rows": self.rows, "columns": self.columns}
        return {**tile, "warps": self.warps, "stages": self.stages, "parts": self.parts}


@dataclass(frozen=True, slots=True)
class Problem:
    """One use of ``op``: ``rows`` requests, tokens or rows, and up to ``length`` keys for each, both powers of two."""

    op: str
    shape: Shape
    rows: int
    length: int

    def __str__(self) -> str:
        s = self.shape
        heads = f"{s.heads}/{s.kv_heads}x{s.width}" if s.kv_heads else f"{s.heads}x{s.width}"
        window = " windowed" if s.windowed else ""
        return f"{self.op} {heads} {s.dtype}{window}, {_some(self.rows, 'row')} x {self.length}"


class Choices:
    """The plans of one device. A use that was not measured takes the plan of the nearest bucket that was."""

    def __init__(self, plans: Mapping[Problem, Plan]) -> None:
        self._plans = dict(plans)
        self._found: dict[Problem, Plan | None] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, op: str, shape: Shape, rows: int, length: int) -> Plan | None:
        """The plan for ``op`` at these extents, None if the shape was never measured."""
        asked = Problem(op, shape, launch.power_of_two(rows), launch.power_of_two(length))
        if asked not in self._found:
            alike = [known for known in self._plans if (known.op, known.shape) == (op, shape)]
            self._found[asked] = self._plans[min(alike, key=lambda known: _distance(known, asked))] if alike else None
        return self._found[asked]


NOTHING = Choices({})
"""No measurement: every launch is decided by ``launch``."""


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _distance(known: Problem, asked: Problem) -> tuple[float, int, int]:
    """In doublings; of equally near ones the smaller."""
    apart = abs(math.log2(known.rows / asked.rows)) + abs(math.log2(known.length / asked.length))
    return apart, known.rows, known.length

"""The problems worth tuning for a model: its operators at the batches and contexts that serving meets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import launch
from ..choices import Problem, Shape

ROWS = (1, 8, 64)
"""Decode batches: alone, small, and as full as most servers run. Others take the nearest."""

LENGTHS = (1024, 8192)
"""Contexts in tokens."""

CHUNK_ROWS = 2048
"""Rows of a prefill: one step's token budget."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model its kernels depend on. ``kv_heads`` 0 is latent attention, ``head_dim`` then the width of a
    latent key; ``windowed``: some layers see a window of ``window`` tokens only (0: none do)."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    window: int = 0

    def of_rank(self, ranks: int) -> ModelShape:
        """One of ``ranks`` tensor ranks: they split the heads, and hold copies of key heads where those are fewer.

        Raises ValueError for heads that do not split evenly.
        """
        if self.heads % ranks or (self.kv_heads and max(self.kv_heads, ranks) % min(self.kv_heads, ranks)):
            raise ValueError(f"{self.heads} heads over {self.kv_heads} key heads cannot be split over {ranks} ranks.")
        return replace(self, heads=self.heads // ranks, kv_heads=self.kv_heads and max(1, self.kv_heads // ranks))


def problems_of(model: ModelShape, dtype: str) -> list[Problem]:
    """In order of what serving spends most on: decode attention, prefill, norms."""
    shape = Shape(model.heads, model.kv_heads, model.head_dim, dtype)
    decode = "paged_decode" if model.kv_heads else "mla_decode"
    found = [Problem(decode, shape, rows, length) for length in LENGTHS for rows in ROWS]
    if model.window:
        narrow = Shape(model.heads, model.kv_heads, model.head_dim, dtype, windowed=True)
        found += [Problem("paged_decode", narrow, rows, launch.power_of_two(model.window)) for rows in ROWS]
    if model.kv_heads:
        found += [Problem("paged_prefill", shape, CHUNK_ROWS, length) for length in LENGTHS]
    norm = Shape(1, 1, model.hidden, dtype)
    return [*found, *(Problem("add_rms_norm", norm, rows, 1) for rows in (*ROWS, CHUNK_ROWS))]

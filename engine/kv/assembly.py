"""From a configuration to running tiers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig, TierConfig

from .block_store import BlockStore
from .buffers import Staging
from .chooser import Chooser, LoadAlways
from .copier import CHUNK
from .disk import DiskStore
from .host import HOST, HostTier
from .mooncake import MooncakeAddress, MooncakeStore
from .ports import BlockMover, LoadRecord
from .sightings import Sightings
from .store_tier import StoreTier
from .tiers import Tiers

_STAGED_STEPS = 2
"""Steps whose blocks staging can hold where no host tier takes them: a store may be one step behind."""

_STAGING_BESIDE_HOST = 16
"""Blocks, for when every slot of the host tier is held."""


def open_tiers(
    config: EngineConfig,
    mover: BlockMover,
    clock: Clock,
    *,
    chooser: Chooser | None = None,
    on_load: Callable[[LoadRecord], None] | None = None,
) -> Tiers | None:
    """The tiers of ``config.kv``, opened; None if it has none.

    Raises ConfigError (a size below one block, a folder or address that cannot be used, a library that is not
    installed), OutOfMemoryError.
    """
    kv, layout = config.kv, config.layout
    if not kv.tiers:
        return None
    sizes = {tier.kind: tier.size(layout) for tier in kv.tiers}
    host = None
    if HOST in sizes:
        memory = mover.allocate(sizes[HOST] // mover.block_bytes * mover.block_bytes)
        host = HostTier(memory, mover.block_bytes, eviction=kv.tier_eviction)
    staged = _STAGING_BESIDE_HOST if host else _STAGED_STEPS * -(-config.max_num_batched_tokens // kv.block_tokens)
    staged = max(staged, CHUNK * len(kv.tiers))  # each store's load takes its buffers together: fewer never suffice
    backlog = max(1, host.capacity // 4) if host else staged
    stores = [
        StoreTier(tier.kind, _open_store(tier, mover, sizes[tier.kind]), clock, backlog=backlog)
        for tier in kv.tiers
        if tier.kind != HOST
    ]
    staging = mover.allocate(staged * mover.block_bytes if stores else 0)
    return Tiers(
        mover,
        clock,
        host=host,
        stores=stores,
        staging=Staging(staging, mover.block_bytes),
        sightings=Sightings(kv.tier_admit_after),
        chooser=chooser or LoadAlways(),
        on_load=on_load or _nobody,
    )


def default_folder() -> Path:
    """Where a disk tier without a path lies: the user's cache folder, as the XDG base directory specification says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "energyopt" / "kv"


def _open_store(tier: TierConfig, mover: BlockMover, size: int) -> BlockStore:
    if tier.kind == "disk":
        folder = Path(tier.path).expanduser() if tier.path else default_folder()
        return DiskStore(folder, mover.layout, size, mover.block_bytes)
    return MooncakeStore(MooncakeAddress.parse(tier.path or ""), mover.layout, size, mover.block_bytes)


def _nobody(load: LoadRecord) -> None:
    """Hears of loads where nobody learns from them."""

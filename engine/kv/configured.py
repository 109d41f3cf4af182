"""The cache that a configuration asks for, over what a runner has."""

from __future__ import annotations

from energyopt.core.config import EngineConfig

from ..batch import CacheShape
from ..disagg.ports import Remote
from .coordinator import KvCoordinator
from .ports import LowerTiers


def cache_for(
    config: EngineConfig, shape: CacheShape, tiers: LowerTiers | None = None, remote: Remote | None = None
) -> KvCoordinator:
    """Raises ConfigError if interval or match unit do not fit the shape's groups."""
    return KvCoordinator(
        shape,
        prefix_caching=config.kv.prefix_caching,
        tiers=tiers,
        remote=remote,
        retention_interval=config.kv.retention_interval,
        match_tokens=config.kv.match_tokens,
        chunk_tokens=config.max_num_batched_tokens,
        lazy_stores=config.kv.tier_store == "lazy",
    )

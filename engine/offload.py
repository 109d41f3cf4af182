"""Tiers below a torch runner's KV pool: the mover, the layout's name and the tiers that a configuration asks for."""

from __future__ import annotations

import logging
import os

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError
from energyopt.core.layouts import describe_layout
from energyopt.core.units import Bytes

from .batch import CacheShape
from .disagg.assembly import open_exchange
from .disagg.geometry import Geometry, ShardedMover, shards_of
from .disagg.ports import Remote
from .fingerprint import kv_layout
from .kv.assembly import open_tiers
from .kv.chooser import Chooser, LoadAlways, LoadIfCheaper
from .kv.economy import Economy
from .kv.ports import BlockMover
from .kv.tiers import Tiers
from .model.rounded import BITS
from .models import OpenedModel
from .mover import TorchMover
from .native.runner import NativeRunner
from .parallel.runner import ParallelRunner
from .runner import TorchRunner
from .runners import AnyRunner

logger = logging.getLogger(__name__)

SECRET = "ENERGYOPT_KV_SECRET"
"""The environment's name for what engines that hand over to each other must all know; it is in no configuration."""


def tiers_for(
    config: EngineConfig,
    loaded: OpenedModel,
    runner: AnyRunner,
    clock: Clock,
    *,
    economy: Economy | None = None,
) -> Tiers | None:
    """None without tiers in ``config``; the model's files are read only with some. Raises what ``open_tiers`` does.

    ``economy`` learns from every load, and decides about them if the configuration says so.
    """
    if not config.kv.tiers:
        return None
    mover = mover_for(config, loaded, runner)
    economy = economy or Economy()
    chooser = choose_loads(config.kv, economy, mover.block_bytes)
    return open_tiers(config, mover, clock, chooser=chooser, on_load=economy.on_load)


def exchange_for(config: EngineConfig, loaded: OpenedModel, runner: AnyRunner, clock: Clock) -> Remote | None:
    """None unless ``config`` says that this engine hands over. Raises what ``open_exchange`` does."""
    if config.kv_transfer is None:
        return None
    mover = mover_for(config, loaded, runner)
    return open_exchange(config.kv_transfer, mover, clock, secret=os.environ.get(SECRET, "").encode())


def mover_for(config: EngineConfig, loaded: OpenedModel, runner: AnyRunner) -> BlockMover:
    """Whole blocks, also where ranks hold parts of them. Raises ConfigError for parts that no whole is made of."""
    if isinstance(runner, ParallelRunner):
        return _spread_mover(config, loaded, runner)
    copy = runner.copy_blocks if isinstance(runner, TorchRunner) else None
    return TorchMover(runner.pool, kv_layout(loaded, runner.cache, kv_form(config, runner)), copy)


def _spread_mover(config: EngineConfig, loaded: OpenedModel, runner: ParallelRunner) -> ShardedMover:
    """A whole block has the name and the bytes that it has in an engine of one rank."""
    spec, cache = loaded.spec, runner.cache
    numbers = tuple(getattr(spec, name, None) for name in ("kv_heads", "head_dim"))
    heads, width = (number if isinstance(number, int) else 0 for number in numbers)
    if runner.replicas > 1 or cache.groups or not heads * width:
        raise ConfigError(
            f"KV tiers and hand-overs are not allowed with the layout {describe_layout(config.layout)} of this model: "
            "they move blocks of one cache, all of whose layers keep keys and values; one rank, tp=1, can."
        )
    shards = shards_of(
        whole := Geometry(spec.layers, cache.block_tokens, heads, width * loaded.dtype.itemsize), config.layout
    )
    shape = CacheShape(cache.num_blocks, cache.block_tokens, Bytes(whole.block_bytes))
    return ShardedMover(kv_layout(loaded, shape, kv_form(config, runner)), whole, shards, runner.movers)


def kv_form(config: EngineConfig, runner: AnyRunner) -> str:
    """What ``kv_layout`` is to know of a runner beside shapes: blocks of two forms must never meet."""
    if isinstance(runner, NativeRunner):
        return f"native {runner.weights}"
    return config.quantization if config.quantization in BITS else ""


def choose_loads(kv: KvConfig, economy: Economy, block_bytes: int) -> Chooser:
    """The policy of ``kv.tier_load``. Where no sensor tells joules, "cheaper" is decided by time, and says so."""
    if kv.tier_load == "always":
        return LoadAlways()
    compute, loads = economy.prefill_seconds, economy.load_seconds
    if kv.tier_load == "cheaper" and economy.measures:
        compute, loads = economy.prefill_joules, economy.load_joules
    elif kv.tier_load == "cheaper":
        logger.warning("No sensor tells joules here: whether to load or to compute is decided by time.")
    return LoadIfCheaper(compute, loads, block_tokens=kv.block_tokens, block_bytes=block_bytes)

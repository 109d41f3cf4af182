"""Tiers below a torch runner's KV pool: the mover, the layout's name and the tiers that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig

from .fingerprint import kv_layout
from .kv.assembly import open_tiers
from .kv.chooser import Chooser
from .kv.ports import LoadRecord
from .kv.tiers import Tiers
from .models import LoadedModel
from .mover import TorchMover
from .runner import TorchRunner


def tiers_for(
    config: EngineConfig,
    loaded: LoadedModel,
    runner: TorchRunner,
    clock: Clock,
    *,
    chooser: Chooser | None = None,
    on_load: Callable[[LoadRecord], None] | None = None,
) -> Tiers | None:
    """None without tiers in ``config``; the model's files are read only with some. Raises what ``open_tiers`` does."""
    if not config.kv.tiers:
        return None
    mover = TorchMover(runner.pool, kv_layout(loaded, runner.cache))
    return open_tiers(config, mover, clock, chooser=chooser, on_load=on_load)

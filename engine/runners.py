"""From a configuration to a model and the runner that computes it: native where that is faster, else torch."""

from __future__ import annotations

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig

from .models import OpenedModel, load_opened, open_source
from .native.loading import load_native
from .native.runner import NativeRunner
from .runner import TorchRunner


def open_runner(config: EngineConfig, clock: Clock) -> tuple[OpenedModel, TorchRunner | NativeRunner]:
    """Raises what ``load_model`` raises."""
    opened, source = open_source(config)
    native = load_native(config, opened, source)
    if native is not None:
        return native, NativeRunner(native, native.model, config, clock)
    loaded = load_opened(config, opened, source)
    return loaded, TorchRunner(loaded, config, clock)

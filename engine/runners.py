"""From a configuration to a model and the runner that computes it: native where that is faster, else torch."""

from __future__ import annotations

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig

from .models import OpenedModel, load_opened, open_source
from .native.loading import load_native
from .native.runner import NativeRunner
from .parallel.layout import check_model_layout
from .parallel.runner import ParallelRunner
from .runner import TorchRunner

AnyRunner = TorchRunner | NativeRunner | ParallelRunner


def open_runner(config: EngineConfig, clock: Clock) -> tuple[OpenedModel, AnyRunner]:
    """Raises what ``load_model`` and ``ParallelRunner`` raise."""
    opened, source = open_source(config)
    check_model_layout(opened.spec, config.layout)
    if config.layout.devices > 1:
        return opened, ParallelRunner(opened, config, clock)
    native = load_native(config, opened, source)
    if native is not None:
        return native, NativeRunner(native, native.model, config, clock)
    loaded = load_opened(config, opened, source)
    return loaded, TorchRunner(loaded, config, clock)

"""From a configuration to a model and the runner that computes it: native where that is faster, else torch."""

from __future__ import annotations

from contextlib import ExitStack

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig

from .batch import CacheShape
from .models import LoadedModel, ModelSource, OpenedModel, load_opened, open_source
from .native.loading import NativeLoaded, load_native
from .native.runner import NativeRunner
from .native.runner import cache_shape as native_shape
from .parallel.layout import check_model_layout
from .parallel.runner import ParallelRunner
from .runner import TorchRunner, cache_shape
from .speculative.companion import check_goes_back, check_same_tokens, draft_config, shared_memory, with_memory
from .speculative.draft_model import DraftModel

AnyRunner = TorchRunner | NativeRunner | ParallelRunner
_Loaded = LoadedModel | NativeLoaded


def open_runner(config: EngineConfig, clock: Clock) -> tuple[OpenedModel, AnyRunner]:
    """Raises what ``load_model`` and ``ParallelRunner`` raise; ConfigError for a draft model that does not fit."""
    opened, source = open_source(config)
    check_model_layout(opened.spec, config.layout)
    if config.layout.devices > 1:
        return opened, ParallelRunner(opened, config, clock)
    asked = config.speculative_config
    if asked is not None and asked.model is not None:
        return _accompanied(config, opened, source, asked.model, clock)
    loaded = _load(config, opened, source)
    return loaded, _runner(config, loaded, clock)


def _accompanied(
    config: EngineConfig, opened: OpenedModel, source: ModelSource, name: str, clock: Clock
) -> tuple[OpenedModel, AnyRunner]:
    """A model's runner with a draft model's beside it; both pools take what one would have."""
    own = draft_config(config, name)
    draft_opened, draft_source = open_source(own, opened.device)
    check_same_tokens(name, draft_opened.tokenizer, opened.tokenizer)
    with ExitStack() as undo:
        loaded = _load(config, opened, source)
        undo.callback(_close, loaded)
        draft = _load(own, draft_opened, draft_source)
        undo.callback(_close, draft)
        shape = _shape(own, draft)
        check_goes_back(name, shape)
        mine, given = shared_memory(_shape(config, loaded), shape)
        runner = _runner(with_memory(config, mine), loaded, clock)
        undo.callback(runner.close)
        runner.draft = DraftModel(
            _runner(with_memory(own, given), draft, clock),
            vocabulary=opened.tokenizer.vocab_size,
            context=draft.max_model_len,
            budget=config.max_num_batched_tokens,
        )
        undo.pop_all()
    return loaded, runner


def _load(config: EngineConfig, opened: OpenedModel, source: ModelSource) -> _Loaded:
    return load_native(config, opened, source) or load_opened(config, opened, source)


def _shape(config: EngineConfig, loaded: _Loaded) -> CacheShape:
    if isinstance(loaded, NativeLoaded):
        return native_shape(loaded.model, config, loaded.max_model_len)
    return cache_shape(loaded, config)


def _runner(config: EngineConfig, loaded: _Loaded, clock: Clock) -> TorchRunner | NativeRunner:
    if isinstance(loaded, NativeLoaded):
        return NativeRunner(loaded, loaded.model, config, clock)
    return TorchRunner(loaded, config, clock)


def _close(loaded: _Loaded) -> None:
    """Threads and weights of the native library are not freed by themselves; closing twice does no harm."""
    if isinstance(loaded, NativeLoaded):
        loaded.model.close()

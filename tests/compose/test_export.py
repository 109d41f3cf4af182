"""An exported winner fits the memory it is meant for, or is not exported."""

from __future__ import annotations

import pytest

from energyopt.compose.export import check_memory
from energyopt.core.config import Deployment, EngineConfig, ParallelLayout, PoolConfig
from energyopt.core.errors import ConfigError


def deployment(model: str, *, tp: int = 1, context: int | None = None) -> Deployment:
    engine = EngineConfig(model=model, layout=ParallelLayout(tp=tp), max_model_len=context)
    return Deployment(decode=PoolConfig(engine=engine))


def test_what_fits_passes() -> None:
    check_memory(deployment("qwen3-8b", context=32_768), "h100")
    check_memory(deployment("llama-3.1-70b", tp=4), "h100")


def test_weights_that_do_not_fit_and_contexts_that_the_cache_cannot_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="decode pool does not fit"):
        check_memory(deployment("llama-3.1-70b"), "h100")
    with pytest.raises(ConfigError, match="max_model_len 10000000"):
        check_memory(deployment("qwen3-8b", context=10_000_000), "h100")

"""What a pool's configuration says beyond the defaults: the settings that a command has to carry, one by one.

Whoever writes a command takes what it can carry out of this list and has to account for the rest, so nothing is left
out in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from energyopt.core.config import EngineConfig, PoolConfig

WHOLE = ("engine.speculative_config", "engine.kv_transfer")
"""Parts that are there or not, as one."""


def at(data: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a dumped configuration; None below a part that is not there."""
    found: Any = data
    for part in path.split("."):
        found = None if found is None else found[part]
    return found


def defaults_of(model: str) -> dict[str, Any]:
    """A dumped pool as it is where nothing is set."""
    return PoolConfig(engine=EngineConfig(model=model)).model_dump()


def differing(pool: PoolConfig) -> dict[str, Any]:
    """Every setting that is not at its default, by its path below the pool; the model is not among them."""
    return dict(_walk(pool.model_dump(), defaults_of(pool.engine.model), ""))


def _walk(data: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and path not in WHOLE:
            yield from _walk(value, defaults[name], f"{path}.")
        elif value != defaults[name]:
            yield path, value

"""The launch command of a configuration, as an argument list and as a line to paste into a shell.

Knows flags and defaults; what a flag does is the business of the engine. A command either starts exactly the given
deployment or names what it had to leave out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.study import Space

from .flags import FLAGS, TIERS, TIERS_INSTEAD, WITHOUT_FLAG, Flag
from .tiers import tier_words

_ALWAYS_FOR_VLLM = (
    "engine.max_num_seqs",
    "engine.max_num_batched_tokens",
    "engine.kv.block_tokens",
    "engine.kv.prefix_caching",
)
"""vLLM's own defaults of these depend on version and device, so they are always written out."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """``dropped`` names each setting the command cannot carry, and what to do instead; empty if it carries all."""

    argv: tuple[str, ...]
    dropped: tuple[str, ...] = ()

    @property
    def shell(self) -> str:
        """One line, quoted for a POSIX shell."""
        return shlex.join(self.argv)


def serve_command(deployment: Deployment, *, tuned: Space | None = None) -> LaunchCommand:
    """``energyopt serve`` for ``deployment``: flags that differ from the defaults, and those of the tuned knobs.

    Raises ConfigError for a deployment that one ``serve`` cannot start (two pools, replicas, a parallel layout).
    """
    pool, defaults = _single_pool(deployment), _defaults(deployment)
    tuned_paths = _tuned_paths(tuned)
    words: list[str] = []
    for flag in FLAGS:
        value, default = _at(pool, flag.path), _at(defaults, flag.path)
        if not flag.ours:
            _require_default(flag.path, value, default)
        elif not flag.unset(value) and (value != default or flag.path in tuned_paths):
            words += flag.argv(value)
    words += tier_words(_at(pool, TIERS))
    return LaunchCommand(_command(("energyopt", "serve"), deployment.decode.engine.model, words))


def vllm_command(deployment: Deployment) -> LaunchCommand:
    """``vllm serve`` with the same settings, as far as vLLM has them. Raises ConfigError as ``serve_command``."""
    pool, defaults = _single_pool(deployment), _defaults(deployment)
    words: list[str] = []
    dropped: list[str] = []
    for flag in FLAGS:
        value, default = _at(pool, flag.path), _at(defaults, flag.path)
        if flag.unset(value) or (value == default and flag.path not in _ALWAYS_FOR_VLLM):
            continue
        if flag.vllm:
            words += flag.argv(value)
        else:
            dropped.append(_dropped(flag, value))
    if _at(pool, TIERS):
        dropped.append(TIERS_INSTEAD)
    argv = _command(("vllm", "serve"), deployment.decode.engine.model, words)
    return LaunchCommand(argv, tuple(dropped))


def _dropped(flag: Flag, value: Any) -> str:
    return f"{' '.join(flag.argv(value))} has no counterpart in vLLM: {flag.instead}."


def _command(program: tuple[str, ...], model: str, words: list[str]) -> tuple[str, ...]:
    """The model comes first; one that looks like an option comes last, after ``--``."""
    return (*program, *words, "--", model) if model.startswith("-") else (*program, model, *words)


def _single_pool(deployment: Deployment) -> Mapping[str, Any]:
    if deployment.prefill is not None:
        raise ConfigError("A deployment with a prefill pool needs more than one command.")
    pool, defaults = deployment.decode.model_dump(), _defaults(deployment)
    for path in WITHOUT_FLAG:
        _require_default(path, _at(pool, path), _at(defaults, path))
    return pool


def _defaults(deployment: Deployment) -> Mapping[str, Any]:
    return PoolConfig(engine=EngineConfig(model=deployment.decode.engine.model)).model_dump()


def _require_default(path: str, value: Any, default: Any) -> None:
    if value != default:
        raise ConfigError(f"{path} = {value!r} cannot be given on one command line; only {default!r} can.")


def _tuned_paths(space: Space | None) -> set[str]:
    return set() if space is None else {knob.path.removeprefix("decode.") for knob in space.knobs}


def _at(data: Mapping[str, Any], path: str) -> Any:
    found: Any = data
    for part in path.split("."):
        found = None if found is None else found[part]
    return found

"""The launch command of a configuration, as an argument list and as a line to paste into a shell.

Knows flags and defaults; what a flag does is the business of the engine. A command either starts exactly the given
deployment or names what it had to leave out.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from energyopt.core.config import Deployment, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.layouts import check_pool_layout, pool_layout
from energyopt.core.study import Space

from .flags import FLAGS, INSTEAD, Flag
from .names import plain, published
from .parts import SERVE_PARTS, VLLM_PARTS, experts, tiers
from .settings import at, differing

_ALWAYS_FOR_VLLM = frozenset(
    (
        "engine.max_num_seqs",
        "engine.max_num_batched_tokens",
        "engine.kv.block_tokens",
        "engine.kv.prefix_caching",
    )
)
"""vLLM's own defaults of these depend on version and device, so they are always written out."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """``dropped`` names each setting the command cannot carry, and what to do instead; empty if it carries all.

    ``notes`` is what a reader has to know of the rest: a model by another name.
    """

    argv: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def shell(self) -> str:
        """One line, quoted for a POSIX shell."""
        return shlex.join(self.argv)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that stands above a command."""
        return (*self.notes, *self.dropped)


def serve_command(deployment: Deployment, *, tuned: Space | None = None) -> LaunchCommand:
    """``energyopt serve`` for ``deployment``: flags that differ from the defaults, and those of the tuned knobs.

    Two pools of equal engines are one command too. Raises ConfigError, with the reason, for a deployment that one
    ``serve`` cannot start.
    """
    pool = deployment.decode
    left, words = differing(pool), _pool_words(deployment)
    left.pop("replicas", None)
    flags = _flags(pool, left, _tuned_paths(tuned), FLAGS)
    flags += experts(left, pool.engine.layout) + tiers(left, pool.engine.layout)
    for part in SERVE_PARTS:
        flags += part(left)
    if left:
        path, value = next(iter(left.items()))
        raise ConfigError(f"{path} = {value!r} cannot be given on one command line.")
    return LaunchCommand(("energyopt", "serve", plain(pool.engine.model), *flags, *words))


def vllm_command(deployment: Deployment) -> LaunchCommand:
    """``vllm serve`` with the same settings, as far as vLLM has them; the rest is named.

    Raises ConfigError for two pools or several replicas.
    """
    pool = single_pool(deployment, "vLLM")
    left = differing(pool)
    dropped: list[str] = []
    words = _flags(pool, left, _ALWAYS_FOR_VLLM, [flag for flag in FLAGS if flag.vllm])
    words += experts(left, pool.engine.layout)
    for part in VLLM_PARTS:
        words += part(left, dropped)
    dropped = [*(_without(path, value) for path, value in left.items()), *dropped]
    model, note = published(plain(pool.engine.model))
    return LaunchCommand(("vllm", "serve", model, *words), tuple(dropped), () if note is None else (note,))


def single_pool(deployment: Deployment, engine: str) -> PoolConfig:
    """The only pool, of one engine. Raises ConfigError."""
    if deployment.prefill is not None:
        raise ConfigError(f"A deployment with a prefill pool needs more than one command of {engine}.")
    if deployment.decode.replicas != 1:
        raise ConfigError(f"replicas = {deployment.decode.replicas}: one command of {engine} starts one engine.")
    return deployment.decode


def _flags(pool: PoolConfig, left: dict[str, Any], always: Collection[str], flags: Collection[Flag]) -> list[str]:
    """The words of the settings that one flag each carries; they are taken out of ``left``."""
    dumped, words = pool.model_dump(), []
    for flag in flags:
        differs = left.pop(flag.path, _SAME) is not _SAME
        value = at(dumped, flag.path)
        if (differs or flag.path in always) and not flag.unset(value):
            words += flag.argv(value)
    return words


_SAME = object()


def _pool_words(deployment: Deployment) -> list[str]:
    """How two pools are asked for. Raises ConfigError where the engines differ, or where several are in one pool."""
    prefill, decode = deployment.prefill, deployment.decode
    if prefill is None:
        if decode.replicas != 1:
            raise ConfigError(
                f"replicas = {decode.replicas} engines need a command each, and `energyopt router` before them."
            )
        return []
    theirs, ours = prefill.engine.layout, decode.engine.layout
    own = {axis: getattr(theirs, axis) for axis in ("tp", "pp") if getattr(theirs, axis) != getattr(ours, axis)}
    for layout in (theirs, ours):
        check_pool_layout(layout)
    layout = pool_layout(ours, **own)
    if prefill.engine != decode.engine.model_copy(update={"layout": layout}) or prefill.power != decode.power:
        raise ConfigError(
            "The prefill and the decode pool have other engines or limits: that needs more than one command, with "
            "`energyopt router` before them."
        )
    words = ["--prefill", str(prefill.replicas), "--decode", str(decode.replicas)]
    return words + [word for axis, size in own.items() for word in (f"--prefill-{axis}", str(size))]


def _without(path: str, value: Any) -> str:
    """What to say of a setting that vLLM has no flag for."""
    if path in INSTEAD:
        return INSTEAD[path]
    flag = next((flag for flag in FLAGS if flag.path == path), None)
    if flag is None:
        return f"{path} = {value!r} has no counterpart in vLLM."
    return f"{' '.join(flag.argv(value))} has no counterpart in vLLM: {flag.instead}."


def _tuned_paths(tuned: Space | None) -> frozenset[str]:
    return frozenset() if tuned is None else frozenset(knob.path.removeprefix("decode.") for knob in tuned.knobs)

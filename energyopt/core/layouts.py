"""Which parallel layouts a model allows: the rules that the tuner searches by and the engine refuses by.

Pure functions over a model's dimensions. Heads and cache heads divide over ``tp`` (or are copied whole), experts over
``ep``, and ``dcp`` may only undo copies of the cache that ``tp`` made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from .config import ParallelLayout, parse_config
from .errors import ConfigError

_SUGGESTED = 64
"""The largest value of one dimension that a refusal suggests."""


class Dimensions(Protocol):
    """What a rule must know of a model. ``experts`` 0 is a dense one."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def moe_ffn(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def mla(self) -> bool: ...


Check = Callable[[Dimensions, ParallelLayout], bool]


def _cache_heads(model: Dimensions, layout: ParallelLayout) -> bool:
    if model.mla:
        return True
    low, high = sorted((model.kv_heads, layout.tp))
    return high % low == 0


def _dcp(model: Dimensions, layout: ParallelLayout) -> bool:
    copies = layout.tp if model.mla else max(1, layout.tp // model.kv_heads)
    return layout.tp % layout.dcp == 0 and copies % layout.dcp == 0


def _experts(model: Dimensions, layout: ParallelLayout) -> bool:
    if not model.experts:
        return layout.ep == 1
    return layout.ep == 1 or (layout.ep == layout.tp * layout.dp and model.experts % layout.ep == 0)


def _ffn(model: Dimensions, layout: ParallelLayout) -> bool:
    whole_experts = not model.experts or layout.ep > 1 or model.moe_ffn % layout.tp == 0
    return model.ffn % layout.tp == 0 and whole_experts


RULES: Mapping[str, Check] = {
    "attention heads divide over tp": lambda model, layout: model.heads % layout.tp == 0,
    "cache heads divide over tp, or tp over them": _cache_heads,
    "ffn divides over tp": _ffn,
    "layers divide over pp": lambda model, layout: model.layers % layout.pp == 0,
    "experts divide over ep = tp x dp": _experts,
    "attention replicas (dp) only where experts are spread": lambda _, layout: layout.dp == 1 or layout.ep > 1,
    "dcp only undoes copies of the cache": _dcp,
}


def broken_rule(model: Dimensions, layout: ParallelLayout) -> str | None:
    """The first rule that the layout breaks, None for a valid one."""
    return next((name for name, check in RULES.items() if not check(model, layout)), None)


def check_layout(model: Dimensions, layout: ParallelLayout) -> None:
    """Raises ConfigError with the rule that the layout breaks, and with what would be allowed in its place."""
    broken = broken_rule(model, layout)
    if broken is not None:
        raise ConfigError(
            f"The layout {describe_layout(layout)} is not allowed: {broken}, and the model has {_numbers(model)}"
            f"{_alternatives(model, layout)}."
        )


def pool_layout(engines: ParallelLayout, *, tp: int | None = None, pp: int | None = None) -> ParallelLayout:
    """The layout of one of two pools whose engines are alike but for ``tp`` and ``pp``.

    Experts are spread over the pool's own ranks, or over none.
    """
    ranks = engines.tp if tp is None else tp
    sizes = {"tp": ranks, "pp": engines.pp if pp is None else pp, "ep": ranks if engines.ep > 1 else 1}
    return parse_config(ParallelLayout, {**engines.model_dump(), **sizes})


def check_pool_layout(layout: ParallelLayout) -> None:
    """Raises ConfigError for a layout that cannot hand its blocks over to another engine."""
    if layout.dcp > 1 or layout.dp > 1:
        raise ConfigError(
            f"The layout {describe_layout(layout)} is not allowed in pools: what is handed over are blocks of one "
            "cache, whole in their positions; allowed are tp, pp and ep, with dcp = 1 and dp = 1."
        )


def describe_layout(layout: ParallelLayout) -> str:
    """``tp=2 pp=3``: the dimensions that are not 1; ``tp=1`` where all are."""
    sizes: Mapping[str, int] = layout.model_dump()
    return " ".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or "tp=1"


def _numbers(model: Dimensions) -> str:
    parts = [f"{model.heads} heads, {model.kv_heads} cache heads, ffn {model.ffn}, {model.layers} layers"]
    parts += [f"{model.experts} experts of {model.moe_ffn}"] if model.experts else ["no experts"]
    return ", ".join(parts)


def _alternatives(model: Dimensions, layout: ParallelLayout) -> str:
    """Values of one dimension that would make the layout valid; dimensions above 1 are tried first to last."""
    sizes: Mapping[str, int] = layout.model_dump()
    for name, size in sizes.items():
        values = range(1, _SUGGESTED + 1) if size > 1 else ()
        fitting = [
            str(value) for value in values if broken_rule(model, layout.model_copy(update={name: value})) is None
        ]
        if fitting:
            return f"; {name} may be {', '.join(fitting)}"
    return ""

"""Valid parallel layouts of a model, and how many each rule removed. Pure functions over a model's dimensions.

The rules are those of the engines: heads and cache heads divide over ``tp`` (or are copied whole), experts over
``ep``, and ``dcp`` may only undo copies of the cache that ``tp`` made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from energyopt.core.config import ParallelLayout


class Dimensions(Protocol):
    """What a rule must know of a model."""

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


@dataclass(frozen=True, slots=True)
class Enumeration:
    """The layouts that keep every rule, and how many each rule was the first to remove."""

    layouts: tuple[ParallelLayout, ...]
    removed: Mapping[str, int]

    @property
    def considered(self) -> int:
        return len(self.layouts) + sum(self.removed.values())


def enumerate_layouts(
    model: Dimensions, devices: int, *, domain: int, extra: Mapping[str, Callable[[ParallelLayout], bool]] | None = None
) -> Enumeration:
    """Every layout of powers of two on at most ``devices``, checked rule by rule.

    ``domain`` devices share fast links: one engine stays inside. ``extra`` are further rules by name, such as memory.
    """
    rules: dict[str, Callable[[ParallelLayout], bool]] = {
        f"at most {devices} devices": lambda layout: layout.devices <= devices,
        f"one link domain of {domain} devices": lambda layout: layout.devices <= domain,
    }
    for name, check in RULES.items():
        rules[name] = _bound(check, model)
    rules |= dict(extra or {})
    kept: list[ParallelLayout] = []
    removed: Counter[str] = Counter()
    for layout in _candidates(devices, domain):
        broken = next((name for name, check in rules.items() if not check(layout)), None)
        if broken is None:
            kept.append(layout)
        else:
            removed[broken] += 1
    return Enumeration(tuple(kept), dict(removed))


def _bound(check: Check, model: Dimensions) -> Callable[[ParallelLayout], bool]:
    return lambda layout: check(model, layout)


def _candidates(devices: int, domain: int) -> Iterator[ParallelLayout]:
    top = min(devices, domain)
    for tp, pp, dp, dcp in product(_powers(top), (1, 2), _powers(top), (1, 2, 4, 8)):
        for ep in {1, tp * dp}:
            yield ParallelLayout(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep)


def _powers(limit: int) -> Sequence[int]:
    return [1 << shift for shift in range(limit.bit_length()) if 1 << shift <= limit]

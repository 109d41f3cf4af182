"""The layouts of a model worth searching, and how many each rule removed. Pure functions over a model's dimensions.

The rules are the engine's own (``energyopt.core.layouts``): what is found here, the engine starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from energyopt.core.config import ParallelLayout
from energyopt.core.layouts import RULES, Check, Dimensions

__all__ = ["RULES", "Dimensions", "Enumeration", "enumerate_layouts"]


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

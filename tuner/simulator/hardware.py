"""GPUs as data: one file each, every value with its unit, its kind and its source.

``kind`` says how far to trust a value: spec, measured, empirical and fitted are grounded; unverified, inferred,
assumption and estimate are shown with a mark wherever they matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from energyopt.core.config import Config, describe_validation
from energyopt.core.errors import ConfigError

from . import datafiles

Kind = Literal["spec", "measured", "empirical", "fitted", "estimate", "assumption", "inferred", "unverified"]
GROUNDED = frozenset({"spec", "measured", "empirical", "fitted"})
REQUIRED = {
    "flops_bf16": "flop/s",
    "memory_bandwidth": "B/s",
    "memory": "B",
    "tdp": "W",
    "idle": "W",
    "link_bandwidth": "B/s",
    "clock_max": "Hz",
    "clock_min": "Hz",
    "cap_min": "W",
    "scale_up": "devices",
}
OPTIONAL = {
    "flops_fp8": "flop/s",
    "flops_fp4": "flop/s",
    "busy_floor": "W",
    "pcie_bandwidth": "B/s",
    "network_bandwidth": "B/s",
    "link_latency": "s",
    "provisioned": "W",
}
"""Facts a file may lack, with the unit it must use where it has them."""


class Fact(Config):
    """One value in SI, how it is known and from where."""

    value: float = Field(gt=0)
    unit: str
    kind: Kind
    source: str = Field(min_length=1)

    @property
    def grounded(self) -> bool:
        return self.kind in GROUNDED


class Gpu(Config):
    """One GPU (or one of the GPUs of a superchip) by its data sheet. ``scale_up`` devices share one link domain."""

    name: str
    title: str
    vendor: Literal["nvidia", "amd", "other"]
    facts: Mapping[str, Fact]

    @model_validator(mode="after")
    def _facts_are_complete(self) -> Gpu:
        known = REQUIRED | OPTIONAL
        for name in REQUIRED:
            if name not in self.facts:
                raise ValueError(f"the fact {name!r} is missing; every GPU needs {', '.join(REQUIRED)}")
        for name, fact in self.facts.items():
            if name not in known:
                raise ValueError(f"the fact {name!r} is unknown; allowed are {', '.join(known)}")
            if fact.unit != known[name]:
                raise ValueError(f"the fact {name!r} is in {fact.unit!r}; it must be in {known[name]!r}")
            if not math.isfinite(fact.value):
                raise ValueError(f"the fact {name!r} is not finite")
        return self

    def value(self, name: str) -> float:
        """A fact that every file has. Raises ConfigError where it is absent."""
        fact = self.facts.get(name)
        if fact is None:
            raise ConfigError(f"The GPU {self.name!r} has no value for {name!r}.")
        return fact.value

    def get(self, name: str) -> float | None:
        """A fact or None: unknown is absent, never 0."""
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    def peak(self, precision: str) -> float:
        """Dense FLOP/s of the arithmetic that a weight precision runs on; falls back to the next wider one known."""
        for name in {"fp4": ("flops_fp4", "flops_fp8"), "fp8": ("flops_fp8",)}.get(precision, ()):
            if name in self.facts:
                return self.facts[name].value
        return self.value("flops_bf16")

    @property
    def unverified(self) -> tuple[str, ...]:
        """Names of the facts that nobody has checked, in order."""
        return tuple(name for name, fact in sorted(self.facts.items()) if not fact.grounded)


def load_gpu(name: str) -> Gpu:
    """A GPU by its name (``h100``, case does not matter) or by the path of a user's file. Raises ConfigError."""
    document = datafiles.load("gpus", name if name.endswith(".json") else name.lower())
    return parse_gpu(document)


def parse_gpu(document: Mapping[str, Any]) -> Gpu:
    """A GPU from the content of its file. Raises ConfigError naming the key and what is allowed."""
    try:
        return Gpu.model_validate(document)
    except ValidationError as error:
        raise ConfigError(describe_validation(Gpu, error)) from error

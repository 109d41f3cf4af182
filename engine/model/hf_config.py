"""``config.json`` of a Hugging Face directory with typed access; every error names the file, the key and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from energyopt.core.errors import ModelFormatError, UnsupportedModelError
from kernels.rope_scaling import Linear, Llama3, Plain, Scaling, Yarn

from ..files import read_json, shown
from .spec import MOST_LAYERS, RopeSpec

_MOST = 1 << 40
"""Of a whole number: products and roots of such numbers are still floats. What a model may have is its spec's."""


class HfConfig:
    """One object of the file. null counts as absent."""

    def __init__(self, path: Path, values: Mapping[str, object] | None = None) -> None:
        if values is None and not path.is_file():
            raise ModelFormatError(f"{path.parent} has no config.json.")
        self.path = path
        self._values = read_json(path) if values is None else values

    @property
    def name(self) -> str:
        """What the model is called: its directory."""
        return self.path.parent.resolve().name

    def get(self, key: str, default: object = None) -> object:
        value = self._values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, *, also: str = "") -> int:
        """A whole number; ``also`` is another name of the same key."""
        value = self.get(key, self.get(also, default))
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelFormatError(f"{self.path}: {key} = {shown(value)} is not a whole number.")
        if abs(value) > _MOST:
            raise ModelFormatError(f"{self.path}: {key} = {shown(value)} is not a number that any model has.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _MOST:
            raise ModelFormatError(f"{self.path}: {key} = {shown(value)} is not a number that any model has.")
        return float(value)

    def flag(self, key: str, default: bool = False, *, also: str = "") -> bool:
        value = self.get(key, self.get(also, default))
        if not isinstance(value, bool):
            raise ModelFormatError(f"{self.path}: {key} = {shown(value)} is not true or false.")
        return value

    def part(self, key: str) -> HfConfig:
        """An object within; empty if absent."""
        found = self.get(key, {})
        if not isinstance(found, dict):
            raise ModelFormatError(f"{self.path}: {key} = {shown(found)} is not an object.")
        return HfConfig(self.path, found)

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, one a layer at most; empty if absent."""
        found = self.get(key, [])
        numbers = isinstance(found, list) and all(type(one) is int and abs(one) <= _MOST for one in found)
        if not isinstance(found, list) or not numbers or len(found) > MOST_LAYERS:
            raise ModelFormatError(
                f"{self.path}: {key} = {shown(found)} is not a list of at most {MOST_LAYERS} whole numbers."
            )
        return tuple(found)

    def kinds(self, key: str, count: int, known: Mapping[str, bool], default: list[str]) -> tuple[bool, ...]:
        """A list of ``count`` names, one a layer, as what ``known`` maps them to."""
        found = self.get(key, default)
        if not isinstance(found, list) or len(found) != count or not all(one in [*known] for one in found):
            raise ModelFormatError(
                f"{self.path}: {key} = {shown(found)} is not a list of {count} names out of {', '.join(known)}."
            )
        return tuple(known[one] for one in found)

    def layers(self) -> int:
        """The number of layers. Raises ModelFormatError for one that no model has."""
        count = self.whole("num_hidden_layers")
        if not 0 < count <= MOST_LAYERS:
            raise ModelFormatError(
                f"{self.path}: num_hidden_layers = {count} is not allowed: it must be between 1 and {MOST_LAYERS}."
            )
        return count

    def refuse(self, key: str, allowed: object) -> None:
        """Raise UnsupportedModelError if ``key`` is there and is not what is ``allowed``."""
        value = self.get(key, allowed)
        if value != allowed:
            raise UnsupportedModelError(f"{self.path}: {key} {shown(value)} is not supported; {allowed} is.")

    def rope(self, width: int, theta: float = 10000.0, kind: str = "") -> RopeSpec:
        """Rotary positions out of ``rope_parameters`` (transformers 5, by ``kind`` of layer where it has several) or
        of ``rope_scaling`` and ``rope_theta`` (before)."""
        found = self.part("rope_parameters") if self.get("rope_parameters") is not None else self.part("rope_scaling")
        if kind and isinstance(found.get(kind), dict):
            found = found.part(kind)
        return RopeSpec(width, found.number("rope_theta", theta), self._scaling(found))

    def local_rope(self, width: int, theta: float, kind: str) -> RopeSpec:
        """The positions of layers with a window, which an older file never scales."""
        named = self.part("rope_parameters").get(kind) is not None
        return self.rope(width, theta, kind) if named else RopeSpec(width, theta)

    def _scaling(self, rope: HfConfig) -> Scaling:
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return Plain()
        if kind == "linear":
            return Linear(rope.number("factor"))
        if kind == "llama3":
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            return Llama3(rope.number("factor"), low, high, rope.whole("original_max_position_embeddings"))
        if kind == "yarn":
            return self._yarn(rope, rope.number("factor"))
        raise UnsupportedModelError(
            f"{self.path}: rope type {shown(kind)} is not supported; default, linear, llama3 and yarn are."
        )

    def _yarn(self, rope: HfConfig, factor: float) -> Yarn:
        """YaRN; DeepSeek writes the stretch of cosines as a ratio of two multipliers of its logarithm."""
        stretch = rope.number("attention_factor") if rope.get("attention_factor") is not None else None
        above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
        if min(above, below) < 0:
            raise ModelFormatError(f"{self.path}: mscale {above} and mscale_all_dim {below} must not be below 0.")
        if stretch is None and above and below:
            stretch = yarn_stretch(factor, above) / yarn_stretch(factor, below)
        context = rope.whole("original_max_position_embeddings")
        fast, slow = rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)
        return Yarn(factor, context, fast, slow, stretch, rope.flag("truncate", True))


def yarn_stretch(factor: float, multiplier: float = 1.0) -> float:
    """``0.1 m ln(factor) + 1`` where positions are stretched (Peng et al., 2023), 1 elsewhere."""
    return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0

"""``config.json`` of a Hugging Face directory with typed access; every error names the file, the key and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from energyopt.core.errors import ModelFormatError, UnsupportedModelError
from kernels.rope_scaling import Linear, Llama3, Plain, Scaling, Yarn

from ..files import read_json
from .spec import RopeSpec

_MOST_LAYERS = 10_000
"""A list by layer is never longer than this; a false number of layers would make one."""


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
            raise ModelFormatError(f"{self.path}: {key} = {value!r} is not a whole number.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ModelFormatError(f"{self.path}: {key} = {value!r} is not a number.")
        return float(value)

    def flag(self, key: str, default: bool = False, *, also: str = "") -> bool:
        value = self.get(key, self.get(also, default))
        if not isinstance(value, bool):
            raise ModelFormatError(f"{self.path}: {key} = {value!r} is not true or false.")
        return value

    def part(self, key: str) -> HfConfig:
        """An object within; empty if absent."""
        found = self.get(key, {})
        if not isinstance(found, dict):
            raise ModelFormatError(f"{self.path}: {key} = {found!r} is not an object.")
        return HfConfig(self.path, found)

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; empty if absent."""
        found = self.get(key, [])
        if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
            raise ModelFormatError(f"{self.path}: {key} = {found!r} is not a list of whole numbers.")
        return tuple(found)

    def kinds(self, key: str, count: int, known: Mapping[str, bool], default: list[str]) -> tuple[bool, ...]:
        """A list of ``count`` names, one a layer, as what ``known`` maps them to."""
        found = self.get(key, default)
        if not isinstance(found, list) or len(found) != count or not all(one in known for one in found):
            raise ModelFormatError(
                f"{self.path}: {key} = {found!r} is not a list of {count} names out of {', '.join(known)}."
            )
        return tuple(known[one] for one in found)

    def layers(self) -> int:
        """The number of layers. Raises ModelFormatError for one that no model has."""
        count = self.whole("num_hidden_layers")
        if not 0 < count <= _MOST_LAYERS:
            raise ModelFormatError(
                f"{self.path}: num_hidden_layers = {count} is not allowed: it must be between 1 and {_MOST_LAYERS}."
            )
        return count

    def refuse(self, key: str, allowed: object) -> None:
        """Raise UnsupportedModelError if ``key`` is there and is not what is ``allowed``."""
        value = self.get(key, allowed)
        if value != allowed:
            raise UnsupportedModelError(f"{self.path}: {key} {value!r} is not supported; {allowed} is.")

    def rope(self, width: int, theta: float = 10000.0, kind: str = "") -> RopeSpec:
        """Rotary positions out of ``rope_parameters`` (transformers 5, by ``kind`` of layer where it has several) or
        of ``rope_scaling`` and ``rope_theta`` (before)."""
        found = self.part("rope_parameters") if self.get("rope_parameters") is not None else self.part("rope_scaling")
        if kind and isinstance(found.get(kind), dict):
            found = found.part(kind)
        theta = found.number("rope_theta", theta)
        if width < 2 or width % 2 or theta <= 0:
            raise ModelFormatError(f"{self.path}: rope over {width} columns of base {theta} is not possible.")
        return RopeSpec(width, theta, self._scaling(found))

    def local_rope(self, width: int, theta: float, kind: str) -> RopeSpec:
        """The positions of layers with a window, which an older file never scales."""
        named = self.part("rope_parameters").get(kind) is not None
        return self.rope(width, theta, kind) if named else RopeSpec(width, theta)

    def _scaling(self, rope: HfConfig) -> Scaling:
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return Plain()
        factor = rope.number("factor")
        if factor <= 0:
            raise ModelFormatError(f"{self.path}: rope factor = {factor} must be above 0.")
        if kind == "linear":
            return Linear(factor)
        if kind == "llama3":
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            if not 0 < low < high:
                raise ModelFormatError(f"{self.path}: rope factors from {low} to {high} are not ascending.")
            return Llama3(factor, low, high, rope.whole("original_max_position_embeddings"))
        if kind == "yarn":
            return self._yarn(rope, factor)
        raise UnsupportedModelError(
            f"{self.path}: rope type {kind!r} is not supported; default, linear, llama3 and yarn are."
        )

    def _yarn(self, rope: HfConfig, factor: float) -> Yarn:
        """YaRN; DeepSeek writes the stretch of cosines as a ratio of two multipliers of its logarithm."""
        stretch = rope.number("attention_factor") if rope.get("attention_factor") is not None else None
        above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
        if stretch is None and above and below:
            stretch = yarn_stretch(factor, above) / yarn_stretch(factor, below)
        context = rope.whole("original_max_position_embeddings")
        fast, slow = rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)
        if context < 1 or fast <= 0 or slow <= 0:
            raise ModelFormatError(f"{self.path}: YaRN over {context} positions from {fast} to {slow} is not possible.")
        return Yarn(factor, context, fast, slow, stretch, rope.flag("truncate", True))


def yarn_stretch(factor: float, multiplier: float = 1.0) -> float:
    """``0.1 m ln(factor) + 1`` where positions are stretched (Peng et al., 2023), 1 elsewhere."""
    return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0

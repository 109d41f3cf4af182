"""What a body that comes over the network may make an engine do: nothing that reaches beyond the engine itself.

A field of a configuration is harmless if it cannot hold free text: numbers, switches and words from a fixed list. Texts
are let through only where they are known to be mere names, so a field that is added later is refused until somebody
has thought about it. The same holds for the knobs of a search and for every value that they may take.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from energyopt.core.config import Config, Deployment, KvTransferConfig
from energyopt.core.errors import ConfigError
from energyopt.core.footprint import FootprintConfig
from energyopt.core.study import Space, Value
from engine.models import ALIASES
from tuner.knobs import kind_of
from tuner.paths import with_path

NAMES = frozenset(("served_model_name", "tool_call_parser", "reasoning_parser"))
"""Texts that are names and nothing else."""
CLOSED: tuple[type[BaseModel], ...] = (KvTransferConfig,)
"""Parts that listen, connect or lend memory, whatever their fields say."""
_PLAIN = (bool, int, float, type(None))


class BodyPolicy:
    """Decides about configurations from outside.

    Models are among ``names`` or lie below one of ``roots``. ``transfers`` lets engines exchange blocks with others, as
    configured by whoever started the service.
    """

    def __init__(
        self, roots: Sequence[Path] = (), *, names: Collection[str] = ALIASES, transfers: bool = False
    ) -> None:
        self._names = frozenset(names)
        self._roots = [Path(os.path.realpath(root)) for root in roots]
        self._closed = () if transfers else CLOSED

    def check_deployment(self, deployment: Deployment) -> None:
        """Raises ConfigError for a setting that reaches out, and for a model outside the roots."""
        for pool in (deployment.decode, deployment.prefill):
            if pool is not None:
                self.check_model(pool.engine.model)
                self._check_fields(pool, "")

    def check_space(self, space: Space, baseline: Deployment) -> None:
        """Raises ConfigError for a knob that would reach out with any of its values."""
        template = baseline.model_dump()
        for knob in space.knobs:
            if not self._is_harmless(knob.path):
                raise ConfigError(f"The knob {knob.path!r} is not allowed here: it leads beyond the engine.")
            if kind_of(knob.path) is not None:
                for value in knob.values:
                    self._check_word(template, knob.path, value)

    def check_model(self, model: str) -> None:
        """Raises ConfigError for a model that is neither a known name nor below a root."""
        if model in self._names:
            return
        real = Path(os.path.realpath(Path(model).expanduser() if model.startswith("~") else model))
        if not any(real.is_relative_to(root) for root in self._roots):
            where = ", ".join(map(str, self._roots)) or "none; start the service with --model-root FOLDER"
            raise ConfigError(
                f"model = {model[:80]!r} is not in a folder that this service may read ({where}), and none "
                f"of the names {', '.join(sorted(self._names))}."
            )

    @staticmethod
    def check_footprint(footprint: FootprintConfig) -> None:
        """Raises ConfigError for intensities in a file."""
        if isinstance(footprint.grid, str):
            raise ConfigError("footprint.grid is not allowed here as a file: say grams of CO2e per kilowatt hour.")

    def _check_word(self, template: Mapping[str, Any], path: str, value: Value) -> None:
        """A knob that is a part as a whole: what the word stands for is looked at."""
        whole: Any = with_path(template, path, value)
        for part in path.split("."):
            whole = whole[part]
        if any(_reaches(key, leaf) for key, leaf in _leaves("", whole)):
            raise ConfigError(f"{path} = {value!r} is not allowed here: the worker's host chooses its folders.")

    def _check_fields(self, config: BaseModel, where: str) -> None:
        for name, field in type(config).model_fields.items():
            value, place = getattr(config, name), f"{where}{name}"
            if name == "model" and where == "engine.":
                continue
            if isinstance(value, self._closed):
                raise ConfigError(f"{place} is not allowed here: engines of this service exchange nothing with others.")
            if isinstance(value, BaseModel):
                self._check_fields(value, f"{place}.")
            elif isinstance(value, tuple) and value and all(isinstance(one, Config) for one in value):
                for position, one in enumerate(value):
                    self._check_fields(one, f"{place}.{position}.")
            elif value != field.default and name not in NAMES and not _is_plain(field.annotation):
                raise ConfigError(f"{place} = {str(value)[:60]!r} is not allowed here: it leads beyond the engine.")

    def _is_harmless(self, path: str) -> bool:
        if kind_of(path) is not None:
            return True
        *parents, last = path.split(".")
        kinds: list[object] = [Deployment]
        for part in parents:
            kinds = [inner for kind in kinds for inner in _models(_annotation(kind, part))]
        if not kinds or any(isinstance(kind, type) and issubclass(kind, self._closed) for kind in kinds):
            return False
        return all(_is_plain(_annotation(kind, last)) for kind in kinds)


def _leaves(key: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Every scalar of a dumped part, with the name of the field that holds it."""
    if isinstance(part, Mapping):
        for name, inner in part.items():
            yield from _leaves(name, inner)
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _leaves(key, inner)
    else:
        yield key, part


def _reaches(key: str, leaf: object) -> bool:
    """Whether a text names a file, a folder or an address; the words of a fixed list have no such signs."""
    return isinstance(leaf, str) and (key in ("model", "path") or any(sign in leaf for sign in "/\\:@~"))


def _annotation(kind: object, name: str) -> object:
    return kind.model_fields[name].annotation if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield one


def _is_plain(annotation: object) -> bool:
    """Whether a value of this type cannot be free text."""
    origin = get_origin(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        return _is_plain(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return all(_is_plain(one) for one in get_args(annotation))
    if isinstance(annotation, type):
        return issubclass(annotation, _PLAIN)
    return _is_plain(getattr(annotation, "__supertype__", str))  # a NewType of units

"""Dotted paths into a Deployment: which there are, reading one, and putting a value at one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from energyopt.core.config import Deployment
from energyopt.core.study import Value

from .knobs import KINDS, kind_of


def knob_paths() -> tuple[str, ...]:
    """Every path a knob may have: the scalar fields of a Deployment, and the parts that are knobs as a whole."""
    whole = (f"{pool}.{path}" for pool in Deployment.model_fields for path in KINDS)
    return tuple(sorted({*_leaves(Deployment, ""), *whole}))


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(t, type)]
        models = [t for t in inner if issubclass(t, BaseModel)]
        if models and field.annotation is not None and getattr(field.annotation, "__origin__", None) is not tuple:
            yield from _leaves(models[0], f"{prefix}{name}.")
        elif not models:
            yield f"{prefix}{name}"


def optional_part(path: str) -> str | None:
    """The outermost part above ``path`` that a Deployment may lack; None if all of them are always there."""
    model: type[BaseModel] = Deployment
    walked: list[str] = []
    for name in path.split(".")[:-1]:
        field = model.model_fields[name]
        walked.append(name)
        if not field.is_required() and field.default is None:
            return ".".join(walked)
        inner = (field.annotation, *getattr(field.annotation, "__args__", ()))
        model = next(t for t in inner if isinstance(t, type) and issubclass(t, BaseModel))
    return None


def read_path(data: Mapping[str, Any], path: str) -> Value:
    """The value at ``path`` of a dumped Deployment; None below a part that it lacks."""
    found: Any = data
    for part in path.split("."):
        found = None if found is None else found[part]
    kind = kind_of(path)
    value: Value = found if kind is None else kind.spell(found)
    return value


def with_path(data: Mapping[str, Any], path: str, value: Value) -> dict[str, Any]:
    """A copy of ``data`` with ``value`` at ``path``; what does not lie on the path is shared.

    A value below a part that ``data`` lacks makes the part, with its other fields at their defaults; None there leaves
    it out. Raises ConfigError for a word that a knob of its own kind does not understand.
    """
    kind = kind_of(path)
    return _placed(data, path, value if kind is None else kind.parse(value))


def _placed(data: Mapping[str, Any], path: str, part: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    if rest and data.get(head) is None and part is None:
        return {**data, head: None}
    return {**data, head: _placed(data.get(head) or {}, rest, part) if rest else part}

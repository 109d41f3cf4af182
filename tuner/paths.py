"""Dotted paths into a Deployment: which there are, reading one, and putting a value at one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from energyopt.core.config import Deployment
from energyopt.core.study import Value


def knob_paths() -> tuple[str, ...]:
    """Every path a knob may have: the scalar fields of a Deployment."""
    return tuple(sorted(_leaves(Deployment, "")))


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(t, type)]
        models = [t for t in inner if issubclass(t, BaseModel)]
        if models and field.annotation is not None and getattr(field.annotation, "__origin__", None) is not tuple:
            yield from _leaves(models[0], f"{prefix}{name}.")
        elif not models:
            yield f"{prefix}{name}"


def read_path(data: Mapping[str, Any], path: str) -> Value:
    """The value at ``path`` of a dumped Deployment."""
    found: Any = data
    for part in path.split("."):
        found = found[part]
    value: Value = found
    return value


def with_path(data: Mapping[str, Any], path: str, value: Value) -> dict[str, Any]:
    """A copy of ``data`` with ``value`` at ``path``; what does not lie on the path is shared."""
    head, _, rest = path.partition(".")
    return {**data, head: with_path(data[head], rest, value) if rest else value}

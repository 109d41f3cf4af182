"""Between records and what a database can hold.

Scalars go to JSON that every reader parses: a float JSON has no word for is an object, ``{"float": "inf"}``, which no
scalar can be mistaken for. Text loses what PostgreSQL or UTF-8 cannot hold (NUL, lone surrogates: the output of a
crashed program has them) to the replacement character; the same in every store, so that they stay interchangeable.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from energyopt.core.study import Value

_UNHOLDABLE = re.compile("[\0\ud800-\udfff]")


def clean(text: str) -> str:
    """``text`` as any database can hold it."""
    return _UNHOLDABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def bounded(number: int, most: int = 2**31 - 1) -> int:
    """``number`` as a database can compare it with an integer column: at least 0, at most ``most``."""
    return min(max(0, number), most)


def clean_optional(text: str | None) -> str | None:
    """``clean``, for text that may be unknown."""
    return None if text is None else clean(text)


def clean_values(values: Mapping[str, Value]) -> dict[str, Value]:
    """A copy of ``values`` in which every key and text is clean."""
    return {clean(key): clean(value) if isinstance(value, str) else value for key, value in values.items()}


def clean_texts(values: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``values`` in which every key and text is clean."""
    return {clean(key): clean(value) for key, value in values.items()}


def dump_values(values: Mapping[str, Value]) -> str:
    """Scalars by name as JSON text. The values must be clean."""
    return json.dumps({key: _dumped(value) for key, value in values.items()}, allow_nan=False)


def load_values(text: str) -> dict[str, Value]:
    """What ``dump_values`` wrote. Raises ValueError on anything else."""
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object, found {type(parsed).__name__}")
    return {key: _loaded(value) for key, value in parsed.items()}


def load_texts(text: str) -> dict[str, str]:
    """Texts by name, as ``dump_values`` wrote them. Raises ValueError on anything else."""
    texts = {}
    for key, value in load_values(text).items():
        if not isinstance(value, str):
            raise ValueError(f"{key!r}: {value!r} is not text")
        texts[key] = value
    return texts


def _dumped(value: Value) -> Value | dict[str, str]:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _loaded(value: object) -> Value:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and list(value) == ["float"]:
        return float(value["float"])
    raise ValueError(f"{value!r} is not a value")

"""Reading rows that strangers wrote: bounded, one at a time, and a fault names line, field and what was expected."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from energyopt.core.errors import ConfigError

MAX_LINE_BYTES = 64 * 2**20
MAX_FILE_BYTES = 2 * 2**30
MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 1e10
T = TypeVar("T")


class BadRowError(ConfigError):
    """A row that does not say what its format says."""


class Skipping:
    """What to do with a bad row: raise its error, or (``skip_bad``) keep its sentence and go on."""

    def __init__(self, skip_bad: bool) -> None:
        self._skip = skip_bad
        self.skipped: list[str] = []

    def attempt(self, work: Callable[[], T]) -> T | None:
        """The result of ``work``, or None for a bad row that is skipped."""
        try:
            return work()
        except BadRowError as error:
            if not self._skip:
                raise
            self.skipped.append(str(error))
            return None


class Row:
    """One JSON object from outside. ``where`` begins every message, such as ``trace.jsonl line 12``."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise BadRowError(f"{where}: expected a JSON object, found {_shown(value)}.")
        self.value: Mapping[str, object] = value
        self.where = where

    def __contains__(self, field: str) -> bool:
        return self.value.get(field) is not None

    def bad(self, field: str, expected: str) -> BadRowError:
        found = "is missing" if field not in self.value else f"is {_shown(self.value[field])}"
        return BadRowError(f"{self.where}: the field {field!r} {found}; expected {expected}.")

    def count(self, field: str, low: int = 0, high: int = MAX_TOKENS) -> int:
        """A whole number in the range. Like its siblings raises BadRowError for anything else."""
        value = self.value.get(field)
        if not is_count(value, low, high):
            raise self.bad(field, f"an integer from {low} to {high}")
        return int(value)  # type: ignore[call-overload, no-any-return]  # it is a number, as just tested

    def number(self, field: str, low: float = 0.0, high: float = MAX_SECONDS) -> float:
        value = self.value.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.bad(field, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, field: str, low: float = 0.0, high: float = MAX_SECONDS) -> float | None:
        return self.number(field, low, high) if field in self else None

    def text(self, field: str) -> str:
        value = self.value.get(field)
        if not isinstance(value, str):
            raise self.bad(field, "a text")
        return value

    def optional_text(self, field: str) -> str | None:
        return self.text(field) if field in self else None

    def ids(self, field: str, below: int) -> tuple[int, ...]:
        """Block ids from 0 to ``below`` - 1; an absent field is ()."""
        value = self.value.get(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(is_count(item, 0, below - 1) for item in value):
            raise self.bad(field, f"a list of integers from 0 to {below - 1}")
        return tuple(value)

    def texts(self, field: str) -> tuple[str, ...]:
        value = self.value.get(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.bad(field, "a list of texts")
        return tuple(value)

    def items(self, field: str) -> list[object]:
        """Any list."""
        value = self.value.get(field)
        if not isinstance(value, list):
            raise self.bad(field, "a list")
        return value

    def objects(self, field: str) -> list[Mapping[str, object]]:
        value = self.value.get(field)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.bad(field, "a list of JSON objects")
        return list(value)


def is_count(value: object, low: int, high: int) -> bool:
    """Whether ``value`` is a whole number in the range; a float of whole value counts, True does not."""
    if isinstance(value, bool):
        return False
    if isinstance(value, float):
        return math.isfinite(value) and value.is_integer() and low <= value <= high
    return isinstance(value, int) and low <= value <= high


def parse_json(text: str | bytes, where: str) -> object:
    """Raises BadRowError for what is not JSON, whatever the reason."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadRowError(f"{where}: nested too deeply.") from error
    except ValueError as error:  # malformed, not UTF-8, or a number of thousands of digits
        raise BadRowError(f"{where}: not JSON ({error}).") from error


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1. Raises ConfigError for an unreadable or oversized file."""
    check_size(path)
    try:
        with path.open("rb") as source:
            number = 0
            while line := source.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ConfigError(f"{path} line {number} is longer than {MAX_LINE_BYTES} bytes.")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def check_size(path: Path, limit: int = MAX_FILE_BYTES) -> None:
    """Raises ConfigError unless ``path`` is a plain file within the limit (a pipe or device would have no end)."""
    if not path.is_file():
        raise ConfigError(f"{path} is not a file.")
    size = path.stat().st_size
    if size > limit:
        raise ConfigError(f"{path} has {size} bytes; at most {limit} are read.")


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, list | dict) else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."

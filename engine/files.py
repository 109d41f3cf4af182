"""Reading files that came from outside, within bounds."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path

from energyopt.core.errors import ConfigError, ModelFormatError
from energyopt.core.files import read_bounded

_MAX_JSON = 256 * 2**20
"""Far above any real one: the largest tokenizer files are some 30 MB."""


_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 300, 300, 80  # a path is shown whole
_MAX_SHOWN = 400
"""Characters: of a list of long values the first is enough."""


def shown(value: object) -> str:
    """A value as a message repeats it: whole where it is short, its beginning where a hostile file made it long."""
    text = _SHORT.repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text in ``path``. Raises ModelFormatError if it is unreadable, larger than ``limit`` or not text."""
    try:
        return read_bounded(path, limit).decode("utf-8")
    except ConfigError as error:
        raise ModelFormatError(error.message) from error
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path} cannot be read: {error}.") from error


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in ``path``. Raises ModelFormatError if it is unreadable, too large or not an object."""
    try:
        value = json.loads(read_bounded(path, _MAX_JSON))
    except ConfigError as error:
        raise ModelFormatError(error.message) from error
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path} is not a JSON object.")
    return value


def inside(directory: Path, name: str) -> Path:
    """``directory / name``. Raises ModelFormatError unless ``name`` is a plain file name within the directory.

    The file itself may be a link: download caches keep the bytes elsewhere and link to them.
    """
    if not name or name in (".", "..") or Path(name).name != name or "\\" in name or "\0" in name:
        raise ModelFormatError(
            f"{directory} names the file {shown(name)}; only files inside the directory are allowed."
        )
    return directory / name

"""Where the hardware, model and constant files live, and how a user's own file joins them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.files import read_bounded

DATA = Path(__file__).parent / "data"
MAX_BYTES = 1 << 20
"""A description is a few kilobytes; anything longer is not one."""


def names(kind: str) -> tuple[str, ...]:
    """Names of the files shipped in a folder of the data (``gpus``, ``models``, ``constants``)."""
    return tuple(sorted(path.stem for path in (DATA / kind).glob("*.json")))


def load(kind: str, name: str) -> Mapping[str, Any]:
    """A shipped description by name, or a user's own by a path that ends in ``.json``.

    Raises NotFoundError for an unknown name, ConfigError for a file that cannot be read or is not a JSON object.
    """
    if name.endswith(".json"):
        return read(Path(name))
    if name not in names(kind):
        raise NotFoundError(f"No {kind.removesuffix('s')} is named {name!r}: there are {', '.join(names(kind))}.")
    return read(DATA / kind / f"{name}.json")


def read(path: Path) -> Mapping[str, Any]:
    """One JSON object of at most ``MAX_BYTES``. Raises ConfigError."""
    try:
        document = json.loads(read_bounded(path, MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The file {path} is not JSON.") from error
    if not isinstance(document, dict):
        raise ConfigError(f"The file {path} is not a JSON object.")
    return document

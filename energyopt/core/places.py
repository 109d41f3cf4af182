"""Where this user's files lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .errors import ConfigError


def data_folder(environ: Mapping[str, str]) -> Path:
    """``$XDG_DATA_HOME/energyopt`` or ``~/.local/share/energyopt``.

    A relative XDG_DATA_HOME is ignored, as its specification asks. Raises ConfigError if HOME is needed and unset.
    """
    data, home = environ.get("XDG_DATA_HOME", ""), environ.get("HOME", "")
    if os.path.isabs(data):
        return Path(data) / "energyopt"
    if not home:
        raise ConfigError("HOME is not set, so there is no default place for results: name a database.")
    return Path(home) / ".local" / "share" / "energyopt"

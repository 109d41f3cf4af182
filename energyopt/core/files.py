"""Reading whole files that came from outside, within bounds."""

from __future__ import annotations

from pathlib import Path

from .errors import ConfigError


def read_bounded(path: Path, limit: int, *, what: str = "file") -> bytes:
    """The bytes of a file of at most ``limit``; a pipe or device, which may have no end, is refused.

    ``what`` is what a message calls it. Raises ConfigError.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"The {what} {path} is not a plain file.")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"The {what} {path} cannot be read: {error.strerror}.") from error
    if len(content) > limit:
        raise ConfigError(f"The {what} {path} is larger than {limit} bytes.")
    return content

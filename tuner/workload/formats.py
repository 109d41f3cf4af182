"""The formats by name, and which one a file has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from energyopt.core.errors import ConfigError

from .azure import COLUMNS, read_azure, write_azure
from .conversations import read_messages, read_sharegpt, write_messages, write_sharegpt
from .mooncake import read_mooncake, write_mooncake
from .rows import check_size
from .trace import Trace
from .weka import read_weka, write_weka

READERS: dict[str, Callable[..., Trace]] = {
    "mooncake": read_mooncake,
    "weka": read_weka,
    "azure": read_azure,
    "messages": read_messages,
    "sharegpt": read_sharegpt,
}
WRITERS: dict[str, Callable[[Trace, Path], object]] = {
    "mooncake": write_mooncake,
    "weka": write_weka,
    "azure": write_azure,
    "messages": write_messages,
    "sharegpt": write_sharegpt,
}
_PEEK = 2**16


def read_trace(path: Path, *, form: str = "auto", block_tokens: int | None = None, skip_bad: bool = False) -> Trace:
    """Read a trace. ``block_tokens`` is for Mooncake files, which do not say it themselves (512 unless told).

    Raises ConfigError for an unknown form, an unreadable file and, unless ``skip_bad``, the first bad row; also for a
    trace in which nothing is left.
    """
    name = detect_form(path) if form == "auto" else form
    if name not in READERS:
        raise ConfigError(f"The trace format {name!r} is not known: expected auto or one of {', '.join(READERS)}.")
    if block_tokens is not None and name != "mooncake":
        raise ConfigError(f"A block size can be given for mooncake files only; {path.name} is {name}.")
    sized = {"block_tokens": block_tokens} if block_tokens is not None else {}
    trace = READERS[name](path, skip_bad=skip_bad, **sized)
    if not trace.sessions:
        raise ConfigError(f"{path} holds no usable session ({len(trace.skipped)} rows were skipped).")
    return trace


def detect_form(path: Path) -> str:
    """The format of a file by its beginning, of a folder by its files. Raises ConfigError."""
    if path.is_dir():
        return "weka"
    check_size(path)
    try:
        with path.open("rb") as source:
            start = source.read(_PEEK)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if start.startswith(COLUMNS[0].encode()):
        return "azure"
    if start.lstrip().startswith(b"["):
        return "sharegpt"
    keys = _first_keys(start)
    for form, marks in _MARKS.items():
        if marks & keys:
            return form
    raise ConfigError(f"{path} is none of {', '.join(READERS)} by its first line; name its format if you know it.")


_MARKS = {
    "weka": {"requests", "hash_id_scope"},
    "sharegpt": {"conversations"},
    "mooncake": {"input_length", "hash_ids", "text_input", "session_id", "delay"},
    "messages": {"messages"},
}
"""Keys by which a format is known, the more telling first."""


def _first_keys(start: bytes) -> set[str]:
    """The keys of the first JSON object: of its line, or, where that is longer, of what is seen of it."""
    line = start.lstrip().split(b"\n", 1)[0]
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {mark for marks in _MARKS.values() for mark in marks if f'"{mark}"'.encode() in start}
    return set(value) if isinstance(value, dict) else set()

"""Azure's public traces: CSV of ``TIMESTAMP,ContextTokens,GeneratedTokens``. Lengths and arrivals, nothing of reuse."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

from .rows import MAX_TOKENS, BadRowError, Skipping, lines_of
from .trace import Agent, Call, Trace, TraceSession

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(2023, 11, 16)  # noqa: DTZ001  # the format has no zone; only differences are used
_TICKS = 10_000_000
"""The stamps have seven digits after the point."""


def read_azure(path: Path, *, skip_bad: bool = False) -> Trace:
    """Each row becomes a session of one call; arrivals count from the earliest. Raises ConfigError."""
    skipping = Skipping(skip_bad)
    rows = lines_of(path)
    _, header = next(rows, (0, b""))
    if tuple(_cells(header)) != COLUMNS:
        raise ConfigError(f"{path.name} line 1: expected the header {','.join(COLUMNS)}.")
    found: list[tuple[int, int, int]] = []
    for line, text in rows:
        row = skipping.attempt(lambda: _row(text, f"{path.name} line {line}"))  # noqa: B023
        if row is not None:
            found.append(row)
    found.sort(key=lambda row: row[0])
    first = found[0][0] if found else 0
    sessions = tuple(
        TraceSession(f"row-{index}", (Agent("root", (Call(i, o, start=Seconds(0.0)),)),), Seconds((t - first) / _TICKS))
        for index, (t, i, o) in enumerate(found)
    )
    return Trace(path.stem, sessions, None, tuple(skipping.skipped))


def write_azure(trace: Trace, path: Path) -> None:
    """Arrivals and lengths only. Raises ConfigError for a call without time or token counts."""
    lines = [",".join(COLUMNS)]
    for timed in trace.timeline():
        call = timed.call
        if timed.time is None or call.input_tokens is None or call.output_tokens is None:
            raise ConfigError("The Azure form needs the arrival and both token counts of every call.")
        ticks = round(timed.time * _TICKS)
        stamp = (_EPOCH + timedelta(seconds=ticks // _TICKS)).isoformat(sep=" ")
        lines.append(f"{stamp}.{ticks % _TICKS:07d},{call.input_tokens},{call.output_tokens}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(line: bytes) -> list[str]:
    """The cells of one line; what is not UTF-8 is marked and will not be a number."""
    try:
        return next(csv.reader([line.decode("utf-8", errors="replace").strip()]), [])
    except csv.Error:
        return []


def _row(line: bytes, where: str) -> tuple[int, int, int]:
    cells = _cells(line)
    if len(cells) != len(COLUMNS):
        raise BadRowError(f"{where}: found {len(cells)} cells; expected {','.join(COLUMNS)}.")
    return _ticks(cells[0], where), _count(cells, 1, where), _count(cells, 2, where)


def _ticks(text: str, where: str) -> int:
    whole, _, digits = text.partition(".")
    try:
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007  # the format has no zone
        if digits and not (digits.isascii() and digits.isdigit()):
            raise ValueError("the fraction is not digits")
    except ValueError as error:
        shown = text[:60]
        raise BadRowError(f"{where}: TIMESTAMP is {shown!r}; expected such as 2023-11-16 18:15:46.6805900.") from error
    return int((moment - _EPOCH).total_seconds()) * _TICKS + int(digits[:7].ljust(7, "0") or "0")


def _count(cells: list[str], column: int, where: str) -> int:
    text = cells[column].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= MAX_TOKENS):
        raise BadRowError(f"{where}: {COLUMNS[column]} is {text[:60]!r}; expected an integer from 0 to {MAX_TOKENS}.")
    return int(text)

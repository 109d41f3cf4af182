"""How the command line speaks: tables and progress for a person, one JSON document with ``--json``.

Results go to standard output, everything else to standard error, so that ``--json`` can be piped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from rich.console import Console

from energyopt.core.errors import EnergyoptError, NoFeasibleError

METER_HELP = "Where joules come from: auto, nvml, amdsmi, rapl, estimated, none, or replay:FILE (a recorded CSV)."


def result_console() -> Console:
    """Standard output. Colour only on a terminal (rich honours NO_COLOR)."""
    return Console(soft_wrap=False, highlight=False)


def message_console() -> Console:
    """Standard error: progress, notices, errors."""
    return Console(stderr=True, soft_wrap=False, highlight=False)


def print_json(document: Mapping[str, object] | list[object]) -> None:
    """One JSON document on standard output; non-finite numbers become strings, so that it stays JSON."""
    sys.stdout.write(json.dumps(finite(document), indent=2, default=str) + "\n")


def print_error(error: EnergyoptError) -> None:
    """One sentence on standard error, on one line: a log or a search must find it whole."""
    word = "no feasible configuration" if isinstance(error, NoFeasibleError) else "error"
    console = message_console()
    console.print(f"[bold red]{word}:[/] ", end="")
    console.print(error.message, markup=False, soft_wrap=True)


def finite(value: object) -> object:
    """The value with non-finite numbers as strings, as JSON has none."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value

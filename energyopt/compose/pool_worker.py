"""The process of one engine of a pool: it serves what its parent writes to it, and ends when its parent does."""

from __future__ import annotations

import os
import signal
import sys
import threading

from energyopt.core.errors import EnergyoptError

from .service import ServeRequest, run_service

PROGRAM = "from energyopt.compose.pool_worker import main; main()"
"""What the parent runs."""

_LONGEST = 1 << 20


def main() -> None:
    """Serve the request in the first line of standard input until a signal, or until that input ends."""
    with open(0, "rb", buffering=0, closefd=False) as given:
        request = ServeRequest.model_validate_json(given.readline(_LONGEST))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        run_service(request, notify=_tell)
    except EnergyoptError as error:
        _tell(f"error: {error.message}")
        sys.exit(error.exit_code)


def _end_with_parent() -> None:
    """The input ends however the parent ends, ``kill -9`` included."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()

"""The child process that holds ``amdsmi``: one JSON request a line in, one JSON reply a line out, one at a time.

First line out: ``{"ready": true}`` or ``{"unavailable": words}``. Requests are ``{"id", "do", "device"?, ...}``,
replies ``{"id", "result"}`` or ``{"id", "error", "code"}``. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from . import limits
from .library import Library, LibraryError

MAX_LINE = 1 << 16
Command = Callable[[Library, Mapping[str, Any]], Any]

COMMANDS: dict[str, Command] = {
    "devices": lambda library, request: library.devices(),
    "sample": lambda library, request: library.sample(str(request["device"])),
    "status": lambda library, request: library.status(str(request["device"])),
    "power_limits": limits.power_limits,
    "set_cap": limits.set_cap,
    "clock_state": limits.clock_state,
    "lock_clock": limits.lock_clock,
    "unlock_clock": limits.unlock_clock,
}
"""What the process can do. Commands that change a device are here too: they share its lock."""


def main() -> None:
    """Serve until the input ends. What the library prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        library = Library()
    except LibraryError as error:
        _send(replies, {"unavailable": str(error)})
        return
    _send(replies, {"ready": True})
    while line := sys.stdin.buffer.readline(MAX_LINE):
        _send(replies, answer(library, line))


def answer(library: Library, line: bytes) -> dict[str, Any]:
    """The reply to one request."""
    request = json.loads(line)
    try:
        return {"id": request["id"], "result": COMMANDS[request["do"]](library, request)}
    except LibraryError as error:
        return {"id": request["id"], "error": str(error), "code": error.code}
    except Exception as error:  # noqa: BLE001 - the border of this process: the parent gets the words, nobody else can
        return {"id": request["id"], "error": f"{type(error).__name__}: {error}", "code": None}


def _send(replies: IO[str], reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()

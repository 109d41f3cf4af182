"""Runs scripts in children of a process that was started with the stub driver on its library path.

One line in, JSON ``{"script", "state"}``; one line out, JSON ``{"answer"}`` or ``{"error"}``. Every script has a fresh
process, without the cost of starting an interpreter. The driver is loaded by the child, never here; what
scripts import is imported here once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import nvmlstub  # type: ignore[import-not-found]  # found through PYTHONPATH, beside this file

import telemetry.control.helper
import telemetry.control.leased
import telemetry.control.nvml_limits
import telemetry.detect  # noqa: F401
from energyopt.core.clock import FakeClock


def run(script: str, path: Path) -> dict[str, Any]:
    """Execute a script with ``state``, ``clock``, ``path`` and ``answer`` in its scope."""
    answers: list[Any] = []
    scope: dict[str, Any] = {"nvmlstub": nvmlstub, "path": path, "answer": answers.append, "os": os}
    scope["state"] = nvmlstub.attach(path) if path.exists() else nvmlstub.create(path)

    class StubClock(FakeClock):
        """The stub's virtual time."""

        def now(self) -> Any:
            return scope["state"].now_ns / 1e9

        def sleep(self, duration: float) -> None:
            scope["state"].elapse(max(0.0, duration))

    scope["clock"] = StubClock()
    try:
        exec(script, scope)
    except BaseException:  # noqa: BLE001 - all of it goes back to the test
        return {"error": traceback.format_exc()}
    return {"answer": answers[-1] if answers else None}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.environ["NVMLSTUB_STATE"] = order["state"]
            with os.fdopen(writing, "w") as out:
                json.dump(run(order["script"], Path(order["state"])), out)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as back:
            words = back.read()
        os.waitpid(child, 0)
        print(words or json.dumps({"error": "the script's process died"}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

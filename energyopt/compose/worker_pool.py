"""Workers as children of the service: started, started again when they die, and left to finish when it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

COMMAND = (sys.executable, "-P", "-c", "from energyopt.cli.main import main; main()", "worker", "--attached")
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
_HEALTHY = 30.0
"""Seconds after which a worker that dies counts as having worked."""
_MAX_LOG = 10 * 2**20


class WorkerPool:
    """``count`` children that run ``command`` with ``--slot N``; their words go to a log in ``folder``.

    They lead sessions of their own, so neither a Ctrl-C of the terminal nor the end of the service stops a study.
    """

    def __init__(
        self,
        count: int,
        environment: Mapping[str, str],
        folder: Path,
        *,
        command: Sequence[str] = COMMAND,
        conductors: int = 0,
    ) -> None:
        """``conductors`` more children lead studies and measure nothing; they need no slot."""
        self._words = [("--slot", str(slot)) for slot in range(count)] + [("--conduct",)] * conductors
        self._environment, self._folder, self._command = dict(environment), folder, tuple(command)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children.values() if child.poll() is None]

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for slot in range(len(self._words)):
            thread = threading.Thread(target=self._keep, args=(slot,), daemon=True, name=f"worker {slot}")
            thread.start()
            self._threads.append(thread)

    def close(self, notify: Callable[[str], None], *, patience: float = 3.0) -> None:
        """Let go of the children: idle ones end at once, others with their study."""
        self._closed.set()
        for child in self._children.values():
            _let_go(child)
        until = time.monotonic() + patience
        while self.pids and time.monotonic() < until:
            time.sleep(0.05)
        for pid in self.pids:
            notify(f"worker {pid} finishes its study and ends then; kill {pid} stops it, and the study can go on later")

    def _keep(self, slot: int) -> None:
        wait = FIRST_WAIT
        while not self._closed.is_set():
            began = time.monotonic()
            child = self._children[slot] = self._spawn(slot)
            if self._closed.is_set():
                _let_go(child)
            child.wait()
            _let_go(child)
            wait = FIRST_WAIT if time.monotonic() - began > _HEALTHY else min(2 * wait, LONGEST_WAIT)
            self._closed.wait(wait)

    def _spawn(self, slot: int) -> subprocess.Popen[bytes]:
        path = self._folder / f"{'slot' if len(self._words[slot]) > 1 else 'conductor'}-{slot}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        too_long = path.exists() and path.stat().st_size > _MAX_LOG
        log = os.open(path, flags | (os.O_TRUNC if too_long else 0), 0o600)
        try:
            return subprocess.Popen(
                [*self._command, *self._words[slot]],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        finally:
            os.close(log)


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Close our end of its standard input: the sign that nobody is there any more."""
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()

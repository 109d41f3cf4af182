"""Keeps one engine of a pool running: starts it, notices its end, starts it again."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from energyopt.core.clock import Clock

from .pool_worker import PROGRAM
from .service import ServeRequest

logger = logging.getLogger(__name__)

ENGINE = (sys.executable, "-P", "-c", PROGRAM)
_READY = re.compile(r"serving on (http://\S+)/v1")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0
"""Seconds between an end and the next start, doubled while starts fail."""

_NO_PROCESS = 71  # EX_OSERR
_SETTLED = 30.0
"""Seconds after which a process that ends is no failed start."""


class PoolProcess:
    """One engine in a process of its own. ``on_up`` hears its address, ``on_down`` its end; on a thread of its own.

    ``command`` is the program: it reads the request as one line, and says on standard error where it serves.
    """

    def __init__(
        self,
        name: str,
        request: ServeRequest,
        clock: Clock,
        *,
        on_up: Callable[[str], None],
        on_down: Callable[[], None],
        environment: Mapping[str, str],
        command: Sequence[str] = ENGINE,
    ) -> None:
        self.name = name
        self.starts = 0
        self.ready = threading.Event()
        """Set once it was up for the first time, or has failed to come up at all."""
        self.failure: str | None = None
        self._request = request
        self._command = tuple(command)
        self._clock = clock
        self._on_up = on_up
        self._on_down = on_down
        self._environment = dict(os.environ) | dict(environment)
        self._words: deque[str] = deque(maxlen=6)
        self._stopping = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._keep, name=f"pool-{name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask for the end; ``join`` waits for it."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()

    def replace(self, why: str) -> None:
        """End a process that is of no use any more; another is started in its place."""
        logger.warning("%s %s, so it is replaced.", self.name, why)
        if self._child is not None:
            self._child.kill()

    def join(self, timeout: float) -> None:
        """Wait for the end, and kill what does not end by itself."""
        self._thread.join(timeout)
        if self._thread.is_alive() and self._child is not None:
            self._child.kill()
            self._thread.join(5.0)

    def _keep(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            began, code = self._clock.now(), self._lived()
            if self._stopping.is_set():
                break
            said = " ".join(word for word in self._words if word) or "nothing"
            if not self.ready.is_set():
                self.failure = f"{self.name} did not start (exit code {code}); it said: {said}"
                break
            pause = _FIRST_PAUSE if self._clock.now() - began > _SETTLED else min(_LONGEST_PAUSE, pause * 2)
            logger.warning("%s ended (exit code %d) and is started again in %g s.", self.name, code, pause)
            self._stopping.wait(pause)
        self.ready.set()

    def _lived(self) -> int:
        """As ``_run``; where no process can be started now, that is a failed start like any other."""
        try:
            return self._run()
        except OSError as error:
            self._words.append(f"no process could be started: {error}")
            return _NO_PROCESS

    def _run(self) -> int:
        """One life of the process; its exit code. A session of its own keeps Ctrl-C for the parent."""
        self.starts += 1
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=self._environment,
            start_new_session=True,
        ) as child:
            self._child = child
            if self._stopping.is_set():  # asked for while it was being started
                child.terminate()
            try:
                assert child.stdin is not None and child.stderr is not None  # noqa: PT018  as asked for above
                try:
                    child.stdin.write(self._request.model_dump_json() + "\n")
                    child.stdin.flush()
                except BrokenPipeError:
                    pass  # it ended already, and its words say why
                for line in child.stderr:
                    self._hear(line.strip())
                return child.wait()
            finally:
                self._on_down()
                child.kill()  # no effect on one that has ended

    def _hear(self, line: str) -> None:
        self._words.append(line)
        match = _READY.search(line)
        if match is not None:
            self._on_up(match.group(1))
            self.ready.set()

"""A server as a child process: its own process group, a bounded tail of its words, a certain end with all it started.

It knows nothing of engines. Standard output and error go to one pipe that a thread empties, so the child never waits
for us; the last words are kept for whoever has to explain its death.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from energyopt.core.errors import LaunchError
from energyopt.core.units import Seconds

TAIL_BYTES = 64 * 1024
_POLL = 0.05


class ServerProcess:
    """Runs ``argv`` until the block ends: SIGTERM to the group, ``grace``, SIGKILL.

    ``environment`` is added to ours. Raises LaunchError if it cannot start.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str] | None = None, *, grace: Seconds = Seconds(10.0)
    ) -> None:
        self._grace, self._tail = grace, b""
        self._lock = threading.Lock()
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise LaunchError(f"The engine {argv[0]!r} cannot be started: {error.strerror or error}.") from error
        self._reader = threading.Thread(target=self._listen, name="engine-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._child.poll()

    @property
    def tail(self) -> bytes:
        """The last words so far."""
        with self._lock:
            return self._tail

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._child.poll() is None:
                self._signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(self._grace)
        finally:
            self._signal(signal.SIGKILL)  # what it started may outlive it
            self._child.wait()
            self._await_group()
            self._reader.join(2.0)
            if self._child.stdout is not None:
                self._child.stdout.close()

    def _listen(self) -> None:
        """Until every holder of the pipe is gone."""
        pipe = self._child.stdout
        while pipe is not None:
            try:
                chunk = os.read(pipe.fileno(), TAIL_BYTES)
            except (OSError, ValueError):  # closed at the end
                return
            if not chunk:
                return
            with self._lock:
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    def _await_group(self) -> None:
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            try:
                os.killpg(self._child.pid, 0)
            except (ProcessLookupError, PermissionError):
                return
            time.sleep(_POLL)


def free_port() -> int:
    """A port of the loopback that nobody has now; somebody may be quicker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_freed(
    free: Callable[[], Mapping[str, int]],
    before: Mapping[str, int],
    *,
    share: float = 0.95,
    patience: Seconds = Seconds(30.0),
) -> bool:
    """Wait until as much memory is free in each place as was ``before`` the engine started; False if it is not in time.

    A place is the host or a device. Drivers give memory back a while after the process is gone, and the next engine
    would take it for occupied. A place that no longer tells is not waited for.
    """
    end = time.monotonic() + patience
    while True:
        now = free()
        if all(now[place] >= share * bytes_ for place, bytes_ in before.items() if place in now):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_POLL * 4)

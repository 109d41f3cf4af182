"""A child process that is watched: one line in, bounded lines out, a bounded tail of its stderr, a certain end.

It knows nothing of trials. The child leads a session and a process group of its own, so a signal reaches everything
it started and a Ctrl-C of the terminal reaches only us. Its standard input stays open for as long as we live.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from energyopt.core.errors import CrashError, LaunchError, TrialTimeoutError
from energyopt.core.units import Seconds

TAIL_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_POLL = Seconds(0.05)


class WatchedProcess:
    """Starts ``command`` with ``message`` as the first line of its input; a context manager that leaves nothing behind.

    Raises LaunchError if the command cannot be started. ``grace`` is the time between SIGTERM and SIGKILL.
    """

    def __init__(
        self, command: Sequence[str], message: bytes, *, env: Mapping[str, str] | None, grace: Seconds = Seconds(5.0)
    ) -> None:
        self.tail = b""
        self.returncode: int | None = None
        self._grace = grace
        self._unsent = memoryview(message + b"\n")
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise LaunchError(f"The trial's command {command[0]!r} cannot be started: {error}.") from error
        pipes = (self._child.stdin, self._child.stdout, self._child.stderr)
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in self._pipes)

    @property
    def pid(self) -> int:
        return self._child.pid

    def lines(self, timeout: Seconds, max_bytes: int) -> Iterator[bytes]:
        """The child's output lines until it ends or closes its output.

        Raises TrialTimeoutError after ``timeout`` and CrashError on a line of more than ``max_bytes``.
        """
        deadline, buffer = time.monotonic() + timeout, bytearray()
        for chunk in self._chunks(deadline, timeout):
            buffer += chunk
            while (end := buffer.find(b"\n")) >= 0 and end <= max_bytes:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                yield line
            if len(buffer) > max_bytes:
                raise CrashError(f"The trial process wrote a line of more than {max_bytes} bytes.")

    def wait(self, timeout: Seconds) -> None:
        """Give the child time to end by itself, reading on what it writes to stderr."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._stderr, selectors.EVENT_READ)
            while not self._ended() and time.monotonic() < deadline:
                if selector.get_map():
                    for key, _ in selector.select(_POLL):
                        self._read(selector, key)
                else:
                    time.sleep(_POLL)

    def note(self, text: bytes) -> None:
        """Add to the tail, of which the last ``TAIL_BYTES`` are kept."""
        self.tail = (self.tail + text)[-TAIL_BYTES:]

    def __enter__(self) -> WatchedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the whole group (SIGTERM, ``grace``, SIGKILL) and wait until the kernel has taken the memory back."""
        try:
            if not self._ended():
                self._signal(signal.SIGTERM)
                self.wait(self._grace)
        finally:
            # Before the child is reaped its id cannot be another's, so this reaches the group or nothing.
            self._signal(signal.SIGKILL)
            self.returncode = self._child.wait()
            self._drain()
            for pipe in self._pipes:
                pipe.close()
            self._await_group()

    def _chunks(self, deadline: float, timeout: Seconds) -> Iterator[bytes]:
        """Pump all three pipes until stdout closes, or the child has ended and said everything."""
        os.set_blocking(self._stdin, False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr, selectors.EVENT_READ)
            while self._stdout in selector.get_map():
                ended = self._ended()
                ready = selector.select(0 if ended else _POLL)
                for key, _ in ready:
                    if key.fd == self._stdin:
                        self._write(selector)
                    elif chunk := self._read(selector, key):
                        yield chunk
                if ended and not any(key.fd == self._stdout for key, _ in ready):
                    return
                if time.monotonic() > deadline:
                    raise TrialTimeoutError(f"The trial did not finish within {timeout:g} s.")

    def _write(self, selector: selectors.BaseSelector) -> None:
        try:
            self._unsent = self._unsent[os.write(self._stdin, self._unsent[:_CHUNK]) :]
        except BrokenPipeError:
            self._unsent = self._unsent[:0]
        if not self._unsent:
            selector.unregister(self._stdin)  # but not closed: the child lives as long as it is open

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bytes:
        """The next piece of stdout; stderr goes to the tail and gives nothing."""
        chunk = os.read(key.fd, _CHUNK)
        if not chunk:
            selector.unregister(key.fd)
        if key.fd == self._stderr:
            self.note(chunk)
            return b""
        return chunk

    def _drain(self) -> None:
        """The last words of stderr, as far as they are in the pipe."""
        os.set_blocking(self._stderr, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._stderr, _CHUNK):
                self.note(chunk)

    def _ended(self) -> bool:
        """Whether the child has ended; it is not reaped, so its id stays its own."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _await_group(self) -> None:
        """Wait a moment for what the child started; a zombie that nobody reaps holds no memory."""
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                return
            time.sleep(0.01)

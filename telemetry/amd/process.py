"""The parent's side of the process that holds ``amdsmi``: it starts it, asks it, and starts it again when it dies.

Before ROCm 7.2 the library is not thread-safe, and a wrong one can end its process: so one child, one request at a
time, under one lock. A child that does not answer in time is killed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from threading import Lock
from typing import Any

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.units import Seconds

from .library import GONE

COMMAND = (sys.executable, "-P", "-m", "telemetry.amd.worker")
TIMEOUT = Seconds(5.0)
"""Seconds for one call: the longest that the driver is seen to take, tenfold."""
START_TIMEOUT = Seconds(30.0)
"""Seconds to import and initialise the library, which walks every device."""
MAX_BACKOFF = 30.0
"""Seconds between starts of a child that keeps dying, or of a library that is not there yet."""
MAX_REPLY = 1 << 20


class AmdProcess:
    """One child, started at the first call. Thread-safe.

    ``failure`` is why there is none now; ``restarts`` counts starts after the first that came up.
    """

    def __init__(self, clock: Clock, *, command: Sequence[str] = COMMAND, timeout: Seconds = TIMEOUT) -> None:
        self._clock = clock
        self._command = tuple(command)
        self._timeout = timeout
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._number = 0
        self._started = 0
        self._failures = 0
        self._not_before = -float("inf")
        self._users = 0
        self.failure: str | None = None

    @property
    def restarts(self) -> int:
        return max(0, self._started - 1)

    @property
    def running(self) -> bool:
        """True while there is a child."""
        return self._child is not None

    def call(self, do: str, **arguments: object) -> Any:
        """The result of one command. Raises what ``timed`` raises."""
        return self.timed(do, **arguments)[0]

    def timed(self, do: str, **arguments: object) -> tuple[Any, Seconds]:
        """The result, and the middle of the time it took once it was this call's turn.

        Raises SensorUnavailableError while the library cannot be used, SensorError if this call failed.
        """
        with self._lock:
            child = self._running()
            before = self._clock.now()
            reply = self._ask(child, do, arguments)
            at = Seconds((before + self._clock.now()) / 2)
            if "error" in reply:
                if reply.get("code") in GONE:
                    self._drop(str(reply["error"]))
                raise SensorError(f"amdsmi: {reply['error']}.")
            self._failures = 0
            return reply.get("result"), at

    def join(self) -> None:
        """Count one more user."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count one user less; the last one ends the child."""
        with self._lock:
            self._users -= 1
            if self._users <= 0:
                self._end()

    def close(self) -> None:
        """End the child, whoever uses it; idempotent. A later call starts it again."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        """The child, started if there is none and the pause after the last failure is over."""
        if self._child is not None:
            return self._child
        wait = self._not_before - self._clock.now()
        if wait > 0:
            raise SensorUnavailableError(f"AMD GPUs cannot be read: {self.failure}; tried again in {wait:.0f} s.")
        child = self._child = self._spawn()
        self._pending = b""
        try:
            greeting = self._receive(child, START_TIMEOUT)
        except SensorError as error:
            raise SensorUnavailableError(f"AMD GPUs cannot be read: {error}") from error
        if greeting.get("ready") is not True:
            self._drop(str(greeting.get("unavailable", "the reader does not answer as it should")))
            raise SensorUnavailableError(f"AMD GPUs cannot be read: {self.failure}.")
        self._started += 1
        self.failure = None
        return child

    def _spawn(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the binding prints there what it also raises
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which ends the child
            )
        except OSError as error:
            raise SensorUnavailableError(
                f"AMD GPUs cannot be read: {self._command[0]} did not start: {error}."
            ) from error

    def _ask(self, child: subprocess.Popen[bytes], do: str, arguments: dict[str, object]) -> dict[str, Any]:
        self._number += 1
        request = json.dumps({"id": self._number, "do": do, **arguments}).encode() + b"\n"
        if child.stdin is None:
            raise SensorError("The AMD reader has no input.")
        try:
            child.stdin.write(request)
        except OSError as error:
            raise self._died(child) from error
        reply = self._receive(child, self._timeout)
        if reply.get("id") != self._number:
            self._drop("the reader answered something else than it was asked")
            raise SensorError("The AMD reader answered something else than it was asked.")
        return reply

    def _receive(self, child: subprocess.Popen[bytes], timeout: Seconds) -> dict[str, Any]:
        """One line, read with a deadline and a bound."""
        line = self._line(child, timeout)
        try:
            reply = json.loads(line)
        except ValueError as error:
            self._drop("the reader did not answer in JSON")
            raise SensorError("The AMD reader did not answer in JSON.") from error
        return reply if isinstance(reply, dict) else {}

    def _line(self, child: subprocess.Popen[bytes], timeout: Seconds) -> bytes:
        if child.stdout is None:
            raise SensorError("The AMD reader has no output.")
        descriptor, deadline = child.stdout.fileno(), self._clock.now() + timeout
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._pending:
            left = deadline - self._clock.now()
            if left <= 0 or len(self._pending) > MAX_REPLY or not poll.poll(left * 1000):
                self._drop(f"a driver call took longer than {timeout:g} s")
                raise SensorError(f"The AMD reader did not answer within {timeout:g} s; it is started again.")
            part = os.read(descriptor, MAX_REPLY)
            if not part:
                raise self._died(child)
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _died(self, child: subprocess.Popen[bytes]) -> SensorError:
        self._end()
        code = child.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._drop(f"the reader's process ended with {how}")
        return SensorError(f"The AMD reader's process ended with {how}; it is started again.")

    def _drop(self, why: str) -> None:
        """End the child and pause before the next, longer after every failure in a row."""
        self._end()
        self.failure = why
        self._failures += 1
        self._not_before = self._clock.now() + min(MAX_BACKOFF, 0.25 * 2 ** min(self._failures, 10))

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(0.5 if child.poll() is None else 0.0)  # it ends by itself when its input does
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

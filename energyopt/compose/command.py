"""Runs another program as if we were not there: same terminal, same environment, same signals, same exit code.

No shell is involved. A signal that is sent to us is passed on; one that the terminal raised (Ctrl-C) the program has
received itself, being in the same process group, and a second one would mean something else to it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from energyopt.core.clock import Clock
from energyopt.core.errors import UsageError
from energyopt.core.units import Seconds

FORWARDED = tuple(
    getattr(signal.Signals, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_SENT_BY_KERNEL = 0x80
"""Linux's SI_KERNEL: a signal that no process sent, such as the terminal's."""


class CommandError(UsageError):
    """A command that could not be started. The exit code is the one that shells use for it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. ``exit_code`` is its own, or 128 + the signal that killed it; times are of the clock."""

    start: Seconds
    end: Seconds
    exit_code: int
    signal: str | None
    cpu_seconds: Seconds


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    clock: Clock,
    *,
    on_tick: Callable[[Seconds], None],
    every: float = 1.0,
) -> Ended:
    """Run ``command`` to its end; ``on_tick`` is called about every ``every`` seconds with the time it has run.

    Call from the main thread, inside ``held_signals``. Raises CommandError if it cannot be started.
    """
    left_ignored = {number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN}
    start = clock.now()
    try:
        pid = os.posix_spawnp(
            command[0],
            list(command),
            dict(environment),
            setsigmask=(),
            setsigdef=[number for number in (*FORWARDED, *_IGNORED_BY_PYTHON) if number not in left_ignored],
        )
    except FileNotFoundError as error:
        raise CommandError(f"The command {command[0]!r} was not found.", 127) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"The command {command[0]!r} cannot be run: {reason}.", 126) from error
    child = _Child(pid)
    while not child.ended():
        got = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, every)
        if got is None:
            on_tick(Seconds(clock.now() - start))
        elif got.si_signo != signal.SIGCHLD and got.si_code != _SENT_BY_KERNEL:
            child.send(got.si_signo)
    end = clock.now()
    code = os.waitstatus_to_exitcode(child.status)
    killed_by = signal.Signals(-code).name if code < 0 else None
    return Ended(start, end, code if code >= 0 else 128 - code, killed_by, Seconds(child.cpu_seconds))


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold forwarded signals back for ``run_command``. Enter before any thread is made: threads inherit it.

    A thread that was there before could still receive one; it then counts for nothing rather than ending us.
    """
    found = {number: signal.getsignal(number) for number in FORWARDED}
    ours = [number for number, handler in found.items() if handler is not signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*ours, signal.SIGCHLD})
    for number in ours:
        signal.signal(number, _nothing)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, found[number])
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Keeps the default action, which would end this process, from happening."""


class _Child:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = False
        self.status = 0
        self.cpu_seconds = 0.0

    def ended(self) -> bool:
        if not self._done:
            pid, status, usage = os.wait4(self._pid, os.WNOHANG)
            if pid:
                self._done, self.status = True, status
                self.cpu_seconds = usage.ru_utime + usage.ru_stime
        return self._done

    def send(self, number: int) -> None:
        """Only to a child not yet waited for, whose id nobody else can have."""
        if not self._done:
            os.kill(self._pid, number)

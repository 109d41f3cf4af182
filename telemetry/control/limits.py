"""Sets power limits for the duration of a ``with`` block and puts back what was found, however the block ends."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Seconds, Watts, milliwatts, watts_from_milliwatts

from .journal import Entry, Holder, Journal
from .ports import DeviceLimits, LimitBackend

log = logging.getLogger(__name__)

ENDING = (signal.SIGTERM, signal.SIGHUP)
TOLERANCE = Watts(1.0)
"""How far the enforced limit may be from the requested one: drivers round."""
ATTEMPTS = 5
PAUSE = Seconds(0.05)
"""A new limit is enforced within a few of these, or another limiter is at work."""


class Capability(NamedTuple):
    """Whether a device can be capped, and why not with the command that would help (or its range, if it can)."""

    allowed: bool
    reason: str


class PowerLimiter:
    """Caps and clock ceilings on ``devices``.

    Before the first change the value found is journalled durably. After a set, requested and enforced limit are read
    back. Restoring puts back the value found, not the default, and leaves alone what someone else changed meanwhile.
    A holder killed outright leaves its entry; ``recover`` at the next start restores it. A locked clock cannot be
    read back from the driver, so restoring unlocks it.
    """

    def __init__(
        self, backend: LimitBackend, devices: Sequence[str], journal: Journal, *, clock: Clock | None = None
    ) -> None:
        self._backend = backend
        self._devices = tuple(devices)
        self._journal = journal
        self._clock = clock or MonotonicClock()

    @contextmanager
    def applied(self, power: PowerConfig) -> Iterator[None]:
        """Apply ``power`` to every device. Without a limit in it nothing is touched.

        Raises ControlError before any change if a device cannot take it, naming the range or the missing permission;
        and after putting back if a limit is not enforced.
        """
        if power.cap is None and power.sm_clock is None:
            yield
            return
        for device in self._devices:
            self._check(device, power)
        self.recover()
        held: list[Entry] = []
        with _ending_unwinds():
            try:
                for device in self._devices:
                    self._apply(device, power, held)
                yield
            finally:
                self._restore_all(held)

    def can_cap(self, device: str) -> Capability:
        """Whether ``applied`` could cap the device, without changing anything."""
        if device.startswith("cpu"):
            return Capability(False, f"{device} has no power limit that can be set; caps work on NVIDIA GPUs.")
        try:
            limits = self._backend.limits(device)
        except ControlError as error:
            return Capability(False, str(error))
        why = self._backend.forbidden(device)
        if why is not None:
            return Capability(False, why)
        return Capability(True, f"{device} can be capped {_range(limits)}, now {limits.requested:.0f} W.")

    def recover(self) -> tuple[str, ...]:
        """Put back what dead holders left; says what was done and what could not be.

        Entries of living holders are not touched; one that could not be put back stays and bars its device.
        """
        done = []
        for entry in self._journal.entries():
            if entry.holder.alive:
                continue
            if not entry.holder.same_boot:
                self._journal.release(entry.device)  # a limit does not survive a reboot
                continue
            try:
                with _undisturbed():
                    done.append(self._restore(entry))
            except ControlError as error:
                done.append(f"{entry.device} could not be put back yet: {error}")
            log.warning("%s", done[-1])
        return tuple(done)

    def _check(self, device: str, power: PowerConfig) -> None:
        allowed, reason = self.can_cap(device)
        if not allowed:
            raise ControlError(reason)
        limits = self._backend.limits(device)
        if power.cap is not None and not limits.low <= power.cap <= limits.high:
            raise ControlError(f"A cap of {power.cap:g} W is not possible: {device} takes {_range(limits)}.")
        if power.sm_clock is not None and limits.max_clock is not None and power.sm_clock > limits.max_clock:
            highest = f"{limits.max_clock / 1e6:.0f} MHz"
            raise ControlError(
                f"An SM clock of {power.sm_clock / 1e6:.0f} MHz is not possible: {device} reaches {highest}."
            )

    def _apply(self, device: str, power: PowerConfig, held: list[Entry]) -> None:
        found = milliwatts(self._backend.limits(device).requested) if power.cap is not None else None
        entry = Entry(
            device=device,
            holder=Holder.me(),
            found_milliwatts=found,
            set_milliwatts=None if power.cap is None else milliwatts(power.cap),
            clock_locked=power.sm_clock is not None,
        )
        with _undisturbed():
            self._journal.claim(entry)
            held.append(entry)
        if power.cap is not None:
            self._backend.set_cap(device, power.cap)
            self._verify(device, power.cap)
        if power.sm_clock is not None:
            self._backend.lock_clock(device, power.sm_clock)

    def _verify(self, device: str, cap: Watts) -> None:
        limits = self._backend.limits(device)
        for _ in range(ATTEMPTS):
            if _holds(limits, cap):
                return
            self._clock.sleep(PAUSE)
            limits = self._backend.limits(device)
        raise ControlError(
            f"{device} accepted a cap of {cap:g} W but says it was asked for {limits.requested:g} W and enforces "
            f"{limits.enforced:g} W: another limiter is at work."
        )

    def _restore_all(self, held: list[Entry]) -> None:
        failures = []
        with _undisturbed():
            for entry in reversed(held):
                try:
                    log.info("%s", self._restore(entry))
                except ControlError as error:
                    failures.append(str(error))
        if failures:
            raise ControlError(" ".join(failures))

    def _restore(self, entry: Entry) -> str:
        """Put one device back and forget the entry; it stays where the driver refuses, for the next start."""
        said = f"{entry.device}: the clock ceiling was lifted." if entry.clock_locked else ""
        if entry.clock_locked:
            self._backend.unlock_clock(entry.device)
        if entry.set_milliwatts is not None and entry.found_milliwatts is not None:
            said = self._restore_cap(entry.device, entry.found_milliwatts, entry.set_milliwatts)
        self._journal.release(entry.device)
        return said

    def _restore_cap(self, device: str, found: int, ours: int) -> str:
        now = milliwatts(self._backend.limits(device).requested)
        if now not in (found, ours):
            return f"{device}: the limit was changed to {now / 1e3:g} W by someone else and is left alone."
        if now != found:
            self._backend.set_cap(device, watts_from_milliwatts(found))
            now = milliwatts(self._backend.limits(device).requested)
        if now != found:
            raise ControlError(f"{device} was to be put back to {found / 1e3:g} W but says {now / 1e3:g} W.")
        return f"{device}: the limit is {found / 1e3:g} W again."


def _holds(limits: DeviceLimits, cap: Watts) -> bool:
    return milliwatts(limits.requested) == milliwatts(cap) and abs(limits.enforced - cap) <= TOLERANCE


def _range(limits: DeviceLimits) -> str:
    return f"between {limits.low:g} W and {limits.high:g} W"


@contextmanager
def _ending_unwinds() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, so that limits are restored, unless the program handles them itself.

    Python delivers signals to the main thread only; entered from another, that thread's handlers stay in charge.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back signals that would end the block half way; they arrive after it.

    Masking them for this thread would not do: the kernel hands a signal to any thread, and Python then runs its
    handler in the main one. Other threads are never interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGINT)}
    held = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    for number in held:
        signal.signal(number, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for caught_number in caught:
            signal.raise_signal(caught_number)

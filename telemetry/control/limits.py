"""One device at a time: journal what is found, set, read back, and put back what was found.

Policy about who may hold what and for how long is in ``leases``; this module knows one process, which holds all that
its entries say.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Seconds, Watts, milliwatts, watts_from_milliwatts

from .journal import Entry, Holder, Journal
from .ports import DeviceLimits, LimitBackend

log = logging.getLogger(__name__)

TOLERANCE = 1000
"""Milliwatts by which a driver may round what it is asked for."""
MOST_CAPS = 16
"""Caps that an entry may name as ours: it has two during a change, more only where a driver refuses to settle."""
ATTEMPTS = 5
PAUSE = Seconds(0.05)
"""A new limit is enforced within a few of these, or another limiter is at work."""


class Capability(NamedTuple):
    """Whether a device can be capped, and why not with the command that would help (or its range, if it can)."""

    allowed: bool
    reason: str


class Limiter:
    """Takes devices under limits and puts back what was found.

    Before the first change the value found is journalled durably. After a set, requested and enforced limit are read
    back. Putting back restores the value found, not the default, and leaves alone what someone else changed meanwhile.
    What a killed process left stays in the journal; ``recover`` at the next start restores it.
    """

    def __init__(self, backend: LimitBackend, journal: Journal, *, clock: Clock | None = None) -> None:
        self._backend = backend
        self._journal = journal
        self._clock = clock or MonotonicClock()

    @property
    def backend(self) -> LimitBackend:
        return self._backend

    def can_cap(self, device: str) -> Capability:
        """Whether ``take`` could cap the device, without changing anything."""
        if device.startswith("cpu"):
            return Capability(False, f"{device} has no power limit that can be set; caps work on GPUs.")
        try:
            limits = self._backend.limits(device)
        except ControlError as error:
            return Capability(False, str(error))
        why = self._backend.forbidden(device)
        if why is not None:
            return Capability(False, why)
        if limits.low >= limits.high:
            return Capability(False, f"{device} takes no cap but {limits.high:g} W: its maker fixed it.")
        return Capability(True, f"{device} can be capped {_range(limits)}, now {limits.requested:.0f} W.")

    def check(self, device: str, power: PowerConfig) -> None:
        """Raises ControlError if the device cannot take ``power``, naming the range or the missing permission."""
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

    def take(self, device: str, power: PowerConfig) -> Entry:
        """Claim, journal, set and verify. Raises ControlError after putting back; the entry stays only if that failed.

        What is found is read after the claim: before it, another process may be about to put its own find back.
        """
        entry = Entry(device, Holder.me(), None, (), False)
        self._journal.claim(entry)
        try:
            entry = self.widen(entry, power)
            self._set(device, power)
        except ControlError as error:
            self._undo(entry, error)
            raise
        return entry

    def widen(self, entry: Entry, power: PowerConfig) -> Entry:
        """Journal that the device may soon stand at ``power`` as well, with what is found where that is new.

        A ``change`` to it follows. What was found first stays what will be put back. Raises ControlError.
        """
        found, clock = entry.found_milliwatts, entry.found_clock
        if power.cap is not None and found is None:
            found = milliwatts(self._backend.limits(entry.device).requested)
        if power.sm_clock is not None and not entry.clock_locked:
            clock = self._backend.clocks(entry.device)
        mine = () if power.cap is None else (milliwatts(power.cap),)
        ours = tuple(dict.fromkeys((*entry.set_milliwatts, *mine)))
        if len(ours) > MOST_CAPS:
            raise ControlError(f"{entry.device} refused {MOST_CAPS} changes in turn; no more are tried.")
        locked = entry.clock_locked or power.sm_clock is not None
        wider = replace(entry, found_milliwatts=found, set_milliwatts=ours, clock_locked=locked, found_clock=clock)
        self._journal.replace(wider)
        return wider

    def change(self, entry: Entry, power: PowerConfig) -> Entry:
        """Set other limits on a taken device whose entry was widened by them. Raises ControlError; the entry holds."""
        if power.cap is None and entry.found_milliwatts is not None:
            log.info("%s", self._put_cap_back(entry.device, entry.found_milliwatts, entry.set_milliwatts))
        if power.sm_clock is None and entry.clock_locked:
            self._backend.unlock_clock(entry.device, entry.found_clock)
        self._set(entry.device, power)
        settled = replace(
            entry,
            found_milliwatts=None if power.cap is None else entry.found_milliwatts,
            set_milliwatts=() if power.cap is None else (milliwatts(power.cap),),
            clock_locked=power.sm_clock is not None,
        )
        self._journal.replace(settled)
        return settled

    def assert_again(self, entry: Entry, power: PowerConfig) -> None:
        """Set once more what a driver forgot; the entry stays as it is. Raises ControlError."""
        self._backend.hold(entry.device)
        self._set(entry.device, power)

    def ours(self, entry: Entry) -> bool:
        """True if the driver still stands where we put it (its clocks cannot be read)."""
        if not entry.set_milliwatts:
            return True
        now = milliwatts(self._backend.limits(entry.device).requested)
        return any(_same(now, mine) for mine in entry.set_milliwatts)

    def put_back(self, entry: Entry) -> str:
        """Put one device back and forget the entry; it stays where the driver refuses, for the next try.

        Raises ControlError then.
        """
        said = f"{entry.device}: the clock ceiling was lifted." if entry.clock_locked else ""
        if entry.clock_locked:
            self._backend.unlock_clock(entry.device, entry.found_clock)
        if entry.found_milliwatts is not None:
            said = self._put_cap_back(entry.device, entry.found_milliwatts, entry.set_milliwatts)
        self._journal.release(entry.device)
        self._backend.let_go(entry.device)
        return said

    def recover(self) -> tuple[str, ...]:
        """Put back what dead holders left; says what was done and what could not be.

        Entries of living holders are not touched; one that could not be put back, and a file that is none, stay and bar
        their device.
        """
        found, problems = self._journal.readable()
        if not problems and all(entry.holder.alive for entry in found):
            return ()
        with self._journal.locked():
            return self._put_back_dead()

    def _put_back_dead(self) -> tuple[str, ...]:
        entries, problems = self._journal.readable()
        done = list(problems)
        for problem in problems:
            log.error("%s Remove it once you have set the limit of its device by hand.", problem)
        for entry in entries:
            if entry.holder.alive:
                continue
            if not entry.holder.same_boot:
                self._journal.release(entry.device)  # a limit does not survive a reboot
                continue
            try:
                done.append(self.put_back(entry))
            except ControlError as error:
                done.append(f"{entry.device} could not be put back yet: {error}")
            log.warning("%s", done[-1])
        return tuple(done)

    def _set(self, device: str, power: PowerConfig) -> None:
        self._backend.hold(device)
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

    def _undo(self, entry: Entry, cause: ControlError) -> None:
        try:
            self.put_back(entry)
        except ControlError as error:
            raise ControlError(f"{cause} It could not be put back either: {error}") from cause

    def _put_cap_back(self, device: str, found: int, ours: tuple[int, ...]) -> str:
        now = milliwatts(self._backend.limits(device).requested)
        if not any(_same(now, known) for known in (found, *ours)):
            return f"{device}: the limit was changed to {now / 1e3:g} W by someone else and is left alone."
        if now != found:
            self._backend.set_cap(device, watts_from_milliwatts(found))
            now = milliwatts(self._backend.limits(device).requested)
        if not _same(now, found):
            raise ControlError(f"{device} was to be put back to {found / 1e3:g} W but says {now / 1e3:g} W.")
        return f"{device}: the limit is {found / 1e3:g} W again."


def _holds(limits: DeviceLimits, cap: Watts) -> bool:
    wanted = milliwatts(cap)
    return _same(milliwatts(limits.requested), wanted) and _same(milliwatts(limits.enforced), wanted)


def _same(one: int, other: int) -> bool:
    return abs(one - other) <= TOLERANCE


def _range(limits: DeviceLimits) -> str:
    return f"between {limits.low:g} W and {limits.high:g} W"

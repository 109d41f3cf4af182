"""Any order of requests, deaths, reloads and strangers: in the end every device is as its operator left it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from energyopt.core.clock import FakeClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Seconds, Watts
from telemetry.control import journal as journal_module
from telemetry.control.access import Access, Peer
from telemetry.control.fake import DEFAULT, FOUND, FakeLimits
from telemetry.control.journal import Journal
from telemetry.control.leases import LOOK_EVERY, LeaseBook
from telemetry.control.limits import Limiter

DEVICES = ("GPU-1", "GPU-2")
ROOT = Peer(1, 0)
STRANGERS = (610.0, 620.0, 630.0)
"""Caps that only someone else sets; leases take others, so that a test can tell them apart."""
POWERS = st.builds(
    PowerConfig,
    cap=st.none() | st.sampled_from([250.0, 300.0, 400.0]),
    sm_clock=st.none() | st.sampled_from([1.0e9, 1.5e9]),
)


DIES = st.just(-1) | st.integers(0, 14)
"""After so many of the steps that a death can fall between; -1 for none."""


class KilledError(BaseException):
    """The process is gone: nothing of it runs any more, no handler and no cleaning up."""


class Machine(RuleBasedStateMachine):
    """The driver and the journal outlive the helper; ``operator`` is what each device should go back to."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.driver = FakeLimits(DEVICES)
        self.clock = FakeClock()
        self.operator = {device: {float(FOUND)} for device in DEVICES}
        self.life = 0
        self.fatal = -1
        for name in ("set_cap", "lock_clock", "unlock_clock"):
            setattr(self.driver, name, self._perilous(getattr(self.driver, name)))
        self._start()

    def _start(self) -> None:
        """A new helper, which puts back what its predecessor left."""
        self.life += 1
        self.patch = mock.patch.object(journal_module, "_started", return_value=self.life)
        self.patch.start()
        journal = Journal(self.folder / "power")
        for name in ("claim", "replace", "release"):
            setattr(journal, name, self._perilous(getattr(journal, name)))
        self.limiter = Limiter(self.driver, journal, clock=FakeClock())
        self.book = LeaseBook(self.limiter, self.clock)
        self.leases: list[str] = []
        self._survived(self.limiter.recover)

    def _perilous(self, call: Callable[..., object]) -> Callable[..., object]:
        """The process may be killed before or after any of these."""

        def wrapped(*args: object) -> object:
            self._toll()
            result = call(*args)
            self._toll()
            return result

        return wrapped

    def _toll(self) -> None:
        if self.fatal == 0:
            self.fatal = -1
            raise KilledError
        self.fatal -= self.fatal > 0

    def _survived(self, work: Callable[[], object]) -> object | None:
        """What ``work`` returns; None after a refusal, and after a death, which a new helper follows."""
        try:
            return work()
        except ControlError:
            return None
        except KilledError:
            self.patch.stop()
            self._start()
            return None

    @rule(power=POWERS, devices=st.sampled_from([DEVICES, DEVICES[:1], DEVICES[1:]]), via=st.integers(1, 3), dies=DIES)
    def acquire(self, power: PowerConfig, devices: tuple[str, ...], via: int, dies: int) -> None:
        self.fatal = dies
        lease = self._survived(lambda: self.book.acquire(ROOT, Access(), devices, power, Seconds(10.0), via))
        if lease is not None:
            self.leases.append(lease.id)  # type: ignore[attr-defined]

    @precondition(lambda self: self.leases)
    @rule(power=POWERS, dies=DIES)
    def adjust(self, power: PowerConfig, dies: int) -> None:
        self.fatal = dies
        self._survived(lambda: self.book.adjust(ROOT, Access(), self.leases[-1], power))

    @precondition(lambda self: self.leases)
    @rule(dies=DIES)
    def release(self, dies: int) -> None:
        lease, self.fatal = self.leases.pop(), dies
        self._survived(lambda: self.book.release(ROOT, lease))

    @rule(via=st.integers(1, 3))
    def client_dies(self, via: int) -> None:
        self._survived(lambda: self.book.connection_closed(via))

    @rule(seconds=st.sampled_from([2.0, 2.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._survived(self.book.tick)

    @rule(device=st.sampled_from(DEVICES), watts=st.sampled_from(STRANGERS))
    def someone_else_sets(self, device: str, watts: float) -> None:
        self.driver.devices[device].requested = Watts(watts)
        self.operator[device] = {watts}

    @rule(device=st.sampled_from(DEVICES))
    def the_driver_is_loaded_anew(self, device: str) -> None:
        """Whoever looks before the lease ends sets it again; else the default is all that is left to go back to."""
        self.driver.devices[device].reload()
        self.operator[device] = {*self.operator[device], float(DEFAULT)}

    @rule(device=st.sampled_from(DEVICES))
    def the_driver_is_away(self, device: str) -> None:
        """For one look: what should have ended meanwhile is tried again after it."""
        gone = self.driver.devices.pop(device)
        self.clock.advance(LOOK_EVERY)
        self._survived(self.book.tick)
        self.driver.devices[device] = gone

    @invariant()
    def what_is_not_held_is_as_the_operator_left_it(self) -> None:
        if not hasattr(self, "book"):
            return
        self.fatal = -1
        entries, problems = self.limiter._journal.readable()
        assert problems == ()
        barred = {entry.device for entry in entries}
        for device in set(DEVICES) - barred:
            self._check(device)

    def _check(self, device: str) -> None:
        state = self.driver.devices[device]
        assert state.requested in self.operator[device], f"{device} stands at {state.requested}"
        assert state.clock is None

    def teardown(self) -> None:
        if not hasattr(self, "book"):
            return
        self.fatal = -1
        self.patch.stop()  # the last helper is killed as well; a next one starts
        self._start()
        try:
            assert self.limiter._journal.entries() == ()
            for device in DEVICES:
                self._check(device)
        finally:
            self.patch.stop()
            shutil.rmtree(self.folder)


TestLeases = Machine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)

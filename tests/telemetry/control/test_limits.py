"""No cap is left behind, and none is put over someone else's."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Watts
from telemetry.control.fake import FakeLimits
from telemetry.control.journal import Entry, Holder, Journal
from telemetry.control.limits import PowerLimiter
from tuner.ports import PowerController

CAP = PowerConfig(cap=Watts(400.0))
DEVICES = ("GPU-1", "GPU-2")


@pytest.fixture
def driver() -> FakeLimits:
    return FakeLimits(DEVICES)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def limiter(driver: FakeLimits, journal: Journal, *devices: str) -> PowerLimiter:
    return PowerLimiter(driver, devices or DEVICES, journal, clock=FakeClock())


def requested(driver: FakeLimits) -> list[float]:
    return [device.requested for device in driver.devices.values()]


def test_has_the_shape_that_the_tuner_asks_for(driver: FakeLimits, journal: Journal) -> None:
    shape: PowerController = limiter(driver, journal)
    with shape.applied(CAP):
        assert requested(driver) == [400.0, 400.0]
    assert requested(driver) == [500.0, 500.0]


def test_the_found_value_is_restored_not_default_or_maximum(driver: FakeLimits, journal: Journal) -> None:
    """Zeus 0.16 leaves a GPU found at 500 W at its maximum of 700 W; noonghunna/club-3090#699."""
    driver.devices["GPU-2"].requested = Watts(333.0)
    with limiter(driver, journal).applied(CAP):
        assert len(journal.entries()) == 2
    assert requested(driver) == [500.0, 333.0]
    assert journal.entries() == ()


def test_nothing_asked_is_nothing_touched(driver: FakeLimits, journal: Journal) -> None:
    with limiter(driver, journal, "cpu:0").applied(PowerConfig()):
        pass
    assert driver.calls == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_restores_however_the_block_ends(driver: FakeLimits, journal: Journal, error: type[BaseException]) -> None:
    with pytest.raises(error), limiter(driver, journal).applied(CAP):
        raise error
    assert requested(driver) == [500.0, 500.0]
    assert journal.entries() == ()


@pytest.mark.parametrize("cap", [199.9, 700.1])
def test_outside_the_range_is_refused_with_the_range(driver: FakeLimits, journal: Journal, cap: float) -> None:
    with (
        pytest.raises(ControlError, match="between 200 W and 700 W"),
        limiter(driver, journal).applied(PowerConfig(cap=Watts(cap))),
    ):
        pass
    assert driver.calls == []
    assert journal.entries() == ()


def test_one_device_that_cannot_leaves_all_untouched(driver: FakeLimits, journal: Journal) -> None:
    driver.devices["GPU-2"].high = Watts(300.0)
    with pytest.raises(ControlError, match="GPU-2"), limiter(driver, journal).applied(CAP):
        pass
    assert driver.calls == []


def test_clock_above_the_maximum_is_refused(driver: FakeLimits, journal: Journal) -> None:
    with (
        pytest.raises(ControlError, match="reaches 1980 MHz"),
        limiter(driver, journal).applied(PowerConfig(sm_clock=Hertz(2.5e9))),
    ):
        pass


def test_clock_is_locked_and_unlocked(driver: FakeLimits, journal: Journal) -> None:
    with limiter(driver, journal).applied(PowerConfig(sm_clock=Hertz(1.2e9))):
        assert driver.devices["GPU-1"].clock == 1.2e9
        assert driver.devices["GPU-1"].requested == 500.0
    assert driver.devices["GPU-1"].clock is None


def test_accepted_but_not_enforced_is_an_error_and_is_undone(driver: FakeLimits, journal: Journal) -> None:
    driver.devices["GPU-2"].other_limiter = Watts(350.0)
    with pytest.raises(ControlError, match="enforces 350 W"), limiter(driver, journal).applied(CAP):
        pass
    assert requested(driver) == [500.0, 500.0]
    assert journal.entries() == ()


def test_what_someone_else_set_meanwhile_is_left_alone(driver: FakeLimits, journal: Journal) -> None:
    with limiter(driver, journal).applied(CAP):
        driver.devices["GPU-1"].requested = Watts(450.0)
    assert requested(driver) == [450.0, 500.0]
    assert journal.entries() == ()


def test_the_journal_is_written_before_the_first_change(driver: FakeLimits, journal: Journal) -> None:
    seen: list[int] = []
    original = driver.set_cap

    def watching(device: str, cap: Watts) -> None:
        seen.append(len(journal.entries()))
        original(device, cap)

    driver.set_cap = watching  # type: ignore[method-assign]
    with limiter(driver, journal).applied(CAP):
        pass
    assert seen[:2] == [1, 2]


def test_no_journal_no_cap(driver: FakeLimits, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = Journal(tmp_path / "file/power")
    with pytest.raises(ControlError), limiter(driver, broken).applied(CAP):
        pass
    assert driver.calls == []


def test_two_holders_of_one_device_are_refused(driver: FakeLimits, journal: Journal) -> None:
    with (
        limiter(driver, journal).applied(CAP),
        pytest.raises(ControlError, match="already under a limit"),
        limiter(driver, journal).applied(PowerConfig(cap=Watts(300.0))),
    ):
        pass
    assert requested(driver) == [500.0, 500.0]


def test_a_failed_restore_keeps_the_entry_and_restores_the_others(driver: FakeLimits, journal: Journal) -> None:
    original = driver.set_cap

    def failing(device: str, cap: Watts) -> None:
        if device == "GPU-2" and cap == 500.0:
            raise ControlError("GPU-2: GPU is lost.")
        original(device, cap)

    with pytest.raises(ControlError, match="GPU is lost"), limiter(driver, journal).applied(CAP):
        driver.set_cap = failing  # type: ignore[method-assign]
    assert requested(driver) == [500.0, 400.0]
    assert [entry.device for entry in journal.entries()] == ["GPU-2"]


class TestRecovery:
    @staticmethod
    def dead(device: str = "GPU-1", **changes: object) -> Entry:
        me = Holder.me()
        entry = Entry(device, replace(me, started=me.started + 1), 500_000, 400_000, False)
        return replace(entry, **changes)  # type: ignore[arg-type]

    def test_a_dead_holders_cap_is_put_back_at_the_next_start(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead())
        driver.devices["GPU-1"].requested = Watts(400.0)
        assert limiter(driver, journal).recover() == ("GPU-1: the limit is 500 W again.",)
        assert requested(driver) == [500.0, 500.0]
        assert journal.entries() == ()

    def test_a_new_cap_begins_with_the_recovery(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead())
        driver.devices["GPU-1"].requested = Watts(400.0)
        with limiter(driver, journal).applied(PowerConfig(cap=Watts(300.0))):
            pass
        assert requested(driver) == [500.0, 500.0]

    def test_what_was_changed_since_is_left_alone(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead())
        driver.devices["GPU-1"].requested = Watts(450.0)
        (said,) = limiter(driver, journal).recover()
        assert "left alone" in said
        assert requested(driver) == [450.0, 500.0]

    def test_a_holder_that_died_before_the_set_changed_nothing(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead())
        limiter(driver, journal).recover()
        assert driver.calls == []
        assert journal.entries() == ()

    def test_a_living_holder_is_not_touched(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead(holder=Holder.me()))
        driver.devices["GPU-1"].requested = Watts(400.0)
        assert limiter(driver, journal).recover() == ()
        assert requested(driver) == [400.0, 500.0]

    def test_an_entry_of_an_earlier_boot_is_dropped(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead(holder=Holder(1, 1, "earlier")))
        driver.devices["GPU-1"].requested = Watts(400.0)
        limiter(driver, journal).recover()
        assert requested(driver) == [400.0, 500.0]
        assert journal.entries() == ()

    def test_a_locked_clock_is_unlocked(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead(clock_locked=True, found_milliwatts=None, set_milliwatts=None))
        driver.devices["GPU-1"].clock = Hertz(1e9)
        limiter(driver, journal).recover()
        assert driver.devices["GPU-1"].clock is None

    def test_a_vanished_device_stays_journalled_and_is_reported(self, driver: FakeLimits, journal: Journal) -> None:
        journal.claim(self.dead("GPU-gone"))
        (said,) = limiter(driver, journal).recover()
        assert "could not be put back yet" in said
        assert len(journal.entries()) == 1


class TestSignals:
    @pytest.fixture(autouse=True)
    def usual_handlers(self) -> Iterator[None]:
        """As on a terminal, whatever started the tests: a background job inherits some of these as ignored."""
        usual: dict[signal.Signals, Any] = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        found = {number: signal.signal(number, handler) for number, handler in usual.items()}
        yield
        for number, handler in found.items():
            signal.signal(number, handler)

    def test_an_ignored_signal_stays_ignored(self, driver: FakeLimits, journal: Journal) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
        with limiter(driver, journal).applied(CAP):
            signal.raise_signal(signal.SIGHUP)
            assert requested(driver) == [400.0, 400.0]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert requested(driver) == [500.0, 500.0]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_unwinds_and_restores(self, driver: FakeLimits, journal: Journal, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        assert before is signal.SIG_DFL
        with pytest.raises(SystemExit) as ended, limiter(driver, journal).applied(CAP):
            signal.raise_signal(number)
        assert ended.value.code == 128 + number
        assert requested(driver) == [500.0, 500.0]
        assert signal.getsignal(number) is before

    def test_a_programs_own_handler_stays_in_charge(self, driver: FakeLimits, journal: Journal) -> None:
        got = threading.Event()
        before = signal.signal(signal.SIGTERM, lambda number, frame: got.set())
        try:
            with limiter(driver, journal).applied(CAP):
                os.kill(os.getpid(), signal.SIGTERM)
                assert got.wait(5.0)
                assert requested(driver) == [400.0, 400.0]
        finally:
            signal.signal(signal.SIGTERM, before)
        assert requested(driver) == [500.0, 500.0]

    def test_a_signal_during_the_restore_waits_for_its_end(self, driver: FakeLimits, journal: Journal) -> None:
        original = driver.set_cap

        def interrupted(device: str, cap: Watts) -> None:
            if cap == 500.0:
                os.kill(os.getpid(), signal.SIGINT)
            original(device, cap)

        driver.set_cap = interrupted  # type: ignore[method-assign]
        release = threading.Event()
        bystanders = [threading.Thread(target=release.wait, args=(10.0,)) for _ in range(4)]
        for thread in bystanders:
            thread.start()  # the kernel may hand them the signal
        try:
            with pytest.raises(KeyboardInterrupt), limiter(driver, journal).applied(CAP):
                pass
        finally:
            release.set()
        assert requested(driver) == [500.0, 500.0]
        assert journal.entries() == ()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_works_outside_the_main_thread(self, driver: FakeLimits, journal: Journal) -> None:
        seen: list[list[float]] = []

        def work() -> None:
            with limiter(driver, journal).applied(CAP):
                seen.append(requested(driver))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(5.0)
        assert seen == [[400.0, 400.0]]
        assert requested(driver) == [500.0, 500.0]


class TestCapability:
    def test_yes_with_the_range(self, driver: FakeLimits, journal: Journal) -> None:
        assert limiter(driver, journal).can_cap("GPU-1") == (
            True,
            "GPU-1 can be capped between 200 W and 700 W, now 500 W.",
        )

    def test_no_for_a_cpu(self, driver: FakeLimits, journal: Journal) -> None:
        allowed, reason = limiter(driver, journal, "cpu:0").can_cap("cpu:0")
        assert not allowed
        assert "no power limit" in reason
        with pytest.raises(ControlError, match="no power limit"), limiter(driver, journal, "cpu:0").applied(CAP):
            pass

    def test_no_without_permission_and_nothing_is_tried(self, journal: Journal) -> None:
        driver = FakeLimits(DEVICES, permitted=False)
        allowed, reason = limiter(driver, journal).can_cap("GPU-1")
        assert not allowed
        assert "sudo" in reason
        with pytest.raises(ControlError, match="sudo"), limiter(driver, journal).applied(CAP):
            pass
        assert driver.calls == []
        assert journal.entries() == ()

    def test_no_for_a_device_that_is_not_there(self, driver: FakeLimits, journal: Journal) -> None:
        allowed, reason = limiter(driver, journal).can_cap("GPU-9")
        assert not allowed
        assert "not a device of this machine" in reason

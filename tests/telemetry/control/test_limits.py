"""No cap is left behind, and none is put over someone else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Watts
from telemetry.control.fake import FakeLimits
from telemetry.control.journal import Entry, Holder, Journal
from telemetry.control.leased import LeasedPower
from telemetry.control.limits import Limiter
from tuner.ports import PowerController

CAP = PowerConfig(cap=Watts(400.0))
DEVICES = ("GPU-1", "GPU-2")
Leased = Callable[..., LeasedPower]


def requested(driver: FakeLimits) -> list[float]:
    return [device.requested for device in driver.devices.values()]


def test_has_the_shape_that_the_tuner_asks_for(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    shape: PowerController = leased()
    with shape.applied(CAP):
        assert requested(driver) == [400.0, 400.0]
    assert requested(driver) == [500.0, 500.0]


def test_the_found_value_is_restored_not_default_or_maximum(
    driver: FakeLimits, journal: Journal, leased: Leased
) -> None:
    """Zeus 0.16 leaves a GPU found at 500 W at its maximum of 700 W; noonghunna/club-3090#699."""
    driver.devices["GPU-2"].requested = Watts(333.0)
    with leased().applied(CAP):
        assert len(journal.entries()) == 2
    assert requested(driver) == [500.0, 333.0]
    assert journal.entries() == ()


def test_nothing_asked_is_nothing_touched(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    with leased("cpu:0").applied(PowerConfig()):
        pass
    assert driver.calls == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_restores_however_the_block_ends(
    driver: FakeLimits, journal: Journal, leased: Leased, error: type[BaseException]
) -> None:
    with pytest.raises(error), leased().applied(CAP):
        raise error
    assert requested(driver) == [500.0, 500.0]
    assert journal.entries() == ()


@pytest.mark.parametrize("cap", [199.9, 700.1])
def test_outside_the_range_is_refused_with_the_range(
    driver: FakeLimits, journal: Journal, leased: Leased, cap: float
) -> None:
    with (
        pytest.raises(ControlError, match="between 200 W and 700 W"),
        leased().applied(PowerConfig(cap=Watts(cap))),
    ):
        pass
    assert driver.calls == []
    assert journal.entries() == ()


def test_one_device_that_cannot_leaves_all_untouched(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    driver.devices["GPU-2"].high = Watts(300.0)
    with pytest.raises(ControlError, match="GPU-2"), leased().applied(CAP):
        pass
    assert driver.calls == []


def test_clock_above_the_maximum_is_refused(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    with (
        pytest.raises(ControlError, match="reaches 1980 MHz"),
        leased().applied(PowerConfig(sm_clock=Hertz(2.5e9))),
    ):
        pass


def test_clock_is_locked_and_unlocked(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    with leased().applied(PowerConfig(sm_clock=Hertz(1.2e9))):
        assert driver.devices["GPU-1"].clock == 1.2e9
        assert driver.devices["GPU-1"].requested == 500.0
    assert driver.devices["GPU-1"].clock is None


def test_accepted_but_not_enforced_is_an_error_and_is_undone(
    driver: FakeLimits, journal: Journal, leased: Leased
) -> None:
    driver.devices["GPU-2"].other_limiter = Watts(350.0)
    with pytest.raises(ControlError, match="enforces 350 W"), leased().applied(CAP):
        pass
    assert requested(driver) == [500.0, 500.0]
    assert journal.entries() == ()


def test_what_someone_else_set_meanwhile_is_left_alone(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    with leased().applied(CAP):
        driver.devices["GPU-1"].requested = Watts(450.0)
    assert requested(driver) == [450.0, 500.0]
    assert journal.entries() == ()


def test_the_journal_is_written_before_the_first_change(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    seen: list[int] = []
    original = driver.set_cap

    def watching(device: str, cap: Watts) -> None:
        seen.append(len(journal.entries()))
        original(device, cap)

    driver.set_cap = watching  # type: ignore[method-assign]
    with leased().applied(CAP):
        pass
    assert seen[:2] == [1, 2]


def test_no_journal_no_cap(driver: FakeLimits, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = Journal(tmp_path / "file/power")
    with pytest.raises(ControlError, match="No limit was set"):
        Limiter(driver, broken).take("GPU-1", CAP)
    assert driver.calls == []


def test_two_holders_of_one_device_are_refused(driver: FakeLimits, journal: Journal, leased: Leased) -> None:
    with (
        leased().applied(CAP),
        pytest.raises(ControlError, match="already under a limit"),
        leased().applied(PowerConfig(cap=Watts(300.0))),
    ):
        pass
    assert requested(driver) == [500.0, 500.0]


def test_a_failed_restore_keeps_the_entry_and_restores_the_others(
    driver: FakeLimits, journal: Journal, leased: Leased
) -> None:
    original = driver.set_cap

    def failing(device: str, cap: Watts) -> None:
        if device == "GPU-2" and cap == 500.0:
            raise ControlError("GPU-2: GPU is lost.")
        original(device, cap)

    with pytest.raises(ControlError, match="GPU is lost"), leased().applied(CAP):
        driver.set_cap = failing  # type: ignore[method-assign]
    assert requested(driver) == [500.0, 400.0]
    assert [entry.device for entry in journal.entries()] == ["GPU-2"]


class TestRecovery:
    @staticmethod
    def dead(device: str = "GPU-1", **changes: object) -> Entry:
        me = Holder.me()
        entry = Entry(device, replace(me, started=me.started + 1), 500_000, (400_000,), False)
        return replace(entry, **changes)  # type: ignore[arg-type]

    def test_a_dead_holders_cap_is_put_back_at_the_next_start(
        self, driver: FakeLimits, journal: Journal, limiter: Limiter
    ) -> None:
        journal.claim(self.dead())
        driver.devices["GPU-1"].requested = Watts(400.0)
        assert limiter.recover() == ("GPU-1: the limit is 500 W again.",)
        assert requested(driver) == [500.0, 500.0]
        assert journal.entries() == ()

    def test_a_new_cap_begins_with_the_recovery(self, driver: FakeLimits, journal: Journal, leased: Leased) -> None:
        journal.claim(self.dead())
        driver.devices["GPU-1"].requested = Watts(400.0)
        with leased().applied(PowerConfig(cap=Watts(300.0))):
            pass
        assert requested(driver) == [500.0, 500.0]

    def test_what_was_changed_since_is_left_alone(self, driver: FakeLimits, journal: Journal, limiter: Limiter) -> None:
        journal.claim(self.dead())
        driver.devices["GPU-1"].requested = Watts(450.0)
        (said,) = limiter.recover()
        assert "left alone" in said
        assert requested(driver) == [450.0, 500.0]

    def test_a_holder_that_died_before_the_set_changed_nothing(
        self, driver: FakeLimits, journal: Journal, limiter: Limiter
    ) -> None:
        journal.claim(self.dead())
        limiter.recover()
        assert driver.calls == []
        assert journal.entries() == ()

    def test_a_living_holder_is_not_touched(self, driver: FakeLimits, journal: Journal, limiter: Limiter) -> None:
        journal.claim(self.dead(holder=Holder.me()))
        driver.devices["GPU-1"].requested = Watts(400.0)
        assert limiter.recover() == ()
        assert requested(driver) == [400.0, 500.0]

    def test_an_entry_of_an_earlier_boot_is_dropped(
        self, driver: FakeLimits, journal: Journal, limiter: Limiter
    ) -> None:
        journal.claim(self.dead(holder=Holder(1, 1, "earlier")))
        driver.devices["GPU-1"].requested = Watts(400.0)
        limiter.recover()
        assert requested(driver) == [400.0, 500.0]
        assert journal.entries() == ()

    def test_a_locked_clock_is_unlocked(self, driver: FakeLimits, journal: Journal, limiter: Limiter) -> None:
        journal.claim(self.dead(clock_locked=True, found_milliwatts=None, set_milliwatts=()))
        driver.devices["GPU-1"].clock = Hertz(1e9)
        limiter.recover()
        assert driver.devices["GPU-1"].clock is None

    def test_a_vanished_device_stays_journalled_and_is_reported(
        self, driver: FakeLimits, journal: Journal, limiter: Limiter
    ) -> None:
        journal.claim(self.dead("GPU-gone"))
        (said,) = limiter.recover()
        assert "could not be put back yet" in said
        assert len(journal.entries()) == 1


class TestCapability:
    def test_yes_with_the_range(self, driver: FakeLimits, journal: Journal, limiter: Limiter) -> None:
        assert limiter.can_cap("GPU-1") == (
            True,
            "GPU-1 can be capped between 200 W and 700 W, now 500 W.",
        )

    def test_no_for_a_cpu(self, driver: FakeLimits, journal: Journal, limiter: Limiter, leased: Leased) -> None:
        allowed, reason = limiter.can_cap("cpu:0")
        assert not allowed
        assert "no power limit" in reason
        with pytest.raises(ControlError, match="no power limit"), leased("cpu:0").applied(CAP):
            pass

    def test_no_without_permission_and_nothing_is_tried(
        self, driver: FakeLimits, journal: Journal, limiter: Limiter, leased: Leased
    ) -> None:
        driver.permitted = False
        allowed, reason = limiter.can_cap("GPU-1")
        assert not allowed
        assert "sudo" in reason
        with pytest.raises(ControlError, match="sudo"), leased().applied(CAP):
            pass
        assert driver.calls == []
        assert journal.entries() == ()

    def test_no_for_a_device_that_is_not_there(self, driver: FakeLimits, journal: Journal, limiter: Limiter) -> None:
        allowed, reason = limiter.can_cap("GPU-9")
        assert not allowed
        assert "not a device of this machine" in reason

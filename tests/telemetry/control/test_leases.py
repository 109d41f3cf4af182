"""The book of leases on a virtual clock: who may hold what, until when, and what happens then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Joules, Seconds, Watts
from telemetry.control.access import Access, Allowance, Peer
from telemetry.control.fake import FakeLimits
from telemetry.control.journal import Journal
from telemetry.control.leases import LOOK_EVERY, Lease, LeaseBook
from telemetry.control.limits import Limiter

CAP = PowerConfig(cap=Watts(400.0))
ROOT, USER, OTHER = Peer(1, 0), Peer(2, 70_001), Peer(3, 70_002)
ACCESS = Access(allow=(Allowance(users=(70_001, 70_002), devices=("GPU-1", "GPU-2")),))
Acquire = Callable[..., Lease]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def book(limiter: Limiter, clock: FakeClock) -> LeaseBook:
    return LeaseBook(limiter, clock)


@pytest.fixture
def acquire(book: LeaseBook) -> Acquire:
    def take(
        *devices: str, peer: Peer = USER, power: PowerConfig = CAP, life: float = 10.0, via: int | None = 1
    ) -> Lease:
        return book.acquire(peer, ACCESS, devices or ("GPU-1",), power, Seconds(life), via)

    return take


def requested(driver: FakeLimits) -> list[float]:
    return [device.requested for device in driver.devices.values()]


def clock_of(driver: FakeLimits) -> float | None:
    return driver.devices["GPU-1"].clock


def pass_time(clock: FakeClock, book: LeaseBook, seconds: float) -> None:
    """As the server's loop does: never past a moment at which the book wants to be asked."""
    end = clock.now() + seconds
    while clock.now() < end:
        clock.advance(min(max(book.wait(), 0.01), end - clock.now()))
        book.tick()


class TestEnds:
    def test_by_its_deadline(self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock) -> None:
        acquire()
        pass_time(clock, book, 9.9)
        assert requested(driver) == [400.0, 500.0]
        pass_time(clock, book, 0.2)
        assert requested(driver) == [500.0, 500.0]
        assert not book.busy

    def test_renewals_put_the_deadline_off(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        lease = acquire()
        for _ in range(5):
            pass_time(clock, book, 8.0)
            book.renew(USER, lease.id)
        assert requested(driver) == [400.0, 500.0]
        pass_time(clock, book, 10.1)
        assert requested(driver) == [500.0, 500.0]
        with pytest.raises(ControlError, match="has ended"):
            book.renew(USER, lease.id)

    def test_by_release(self, driver: FakeLimits, book: LeaseBook, acquire: Acquire) -> None:
        lease = acquire("GPU-1", "GPU-2", "GPU-1")
        assert requested(driver) == [400.0, 400.0]
        assert set(book.release(USER, lease.id)) == {
            "GPU-1: the limit is 500 W again.",
            "GPU-2: the limit is 500 W again.",
        }
        assert requested(driver) == [500.0, 500.0]

    def test_with_its_own_connection_only(self, driver: FakeLimits, book: LeaseBook, acquire: Acquire) -> None:
        acquire("GPU-1", via=1)
        acquire("GPU-2", via=2)
        book.connection_closed(1)
        assert requested(driver) == [500.0, 400.0]

    def test_a_kept_lease_outlives_its_connection_but_not_its_deadline(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        acquire(via=None, life=3600.0)
        book.connection_closed(1)
        pass_time(clock, book, 3599.0)
        assert requested(driver) == [400.0, 500.0]
        pass_time(clock, book, 1.1)
        assert requested(driver) == [500.0, 500.0]

    def test_with_the_book(self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, journal: Journal) -> None:
        acquire("GPU-1")
        acquire("GPU-2", via=None)
        book.close()
        assert requested(driver) == [500.0, 500.0]
        assert journal.entries() == ()


class TestRefuses:
    def test_a_device_that_is_held_and_says_by_whom(self, acquire: Acquire) -> None:
        lease = acquire()
        with pytest.raises(ControlError, match=rf"lease {lease.id} of 70001 \(pid 2\), 10 s left.*cap clear"):
            acquire(peer=OTHER)

    def test_all_devices_where_one_cannot(self, driver: FakeLimits, acquire: Acquire, journal: Journal) -> None:
        with pytest.raises(ControlError, match="GPU-9"):
            acquire("GPU-1", "GPU-9", peer=ROOT)
        driver.devices["GPU-2"].other_limiter = Watts(350.0)
        with pytest.raises(ControlError, match="another limiter"):
            acquire("GPU-1", "GPU-2")
        assert requested(driver) == [500.0, 500.0]
        assert journal.entries() == ()

    def test_another_users_lease(self, book: LeaseBook, acquire: Acquire) -> None:
        lease = acquire()
        with pytest.raises(ControlError, match="no lease"):
            book.renew(OTHER, lease.id)
        with pytest.raises(ControlError, match="no lease"):
            book.release(OTHER, lease.id)
        with pytest.raises(ControlError, match="no lease"):
            book.adjust(OTHER, ACCESS, lease.id, CAP)
        with pytest.raises(ControlError, match="held by 70001"):
            book.clear(OTHER, ("GPU-1",))
        assert book.clear(ROOT, ("GPU-1",)) == ("GPU-1: the limit is 500 W again.",)

    def test_what_the_list_does_not_allow(self, driver: FakeLimits, book: LeaseBook) -> None:
        stranger = Peer(4, 70_009)
        with pytest.raises(ControlError, match=r"power\.toml"):
            book.acquire(stranger, ACCESS, ("GPU-1",), CAP, Seconds(1.0), 1)
        floor = Access(allow=(Allowance(users=(70_001,), devices=("GPU-1",), lowest_cap=Watts(450.0)),))
        with pytest.raises(ControlError, match="450 W or above"):
            book.acquire(USER, floor, ("GPU-1",), CAP, Seconds(1.0), 1)
        with pytest.raises(ControlError, match="1 min at most"):
            book.acquire(USER, Access(allow=floor.allow, longest=Seconds(60.0)), ("GPU-1",), CAP, Seconds(61.0), 1)
        assert driver.calls == []

    def test_a_lease_of_nothing(self, book: LeaseBook, acquire: Acquire) -> None:
        with pytest.raises(ControlError, match="needs a cap"):
            acquire(power=PowerConfig())
        lease = acquire()
        with pytest.raises(ControlError, match="needs a cap"):
            book.adjust(USER, ACCESS, lease.id, PowerConfig())


class TestAdjusts:
    def test_and_still_puts_back_what_was_found_first(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        lease = acquire()
        pass_time(clock, book, 9.0)
        book.adjust(USER, ACCESS, lease.id, PowerConfig(cap=Watts(300.0), sm_clock=Hertz(1.2e9)))
        assert lease.deadline == clock.now() + 10.0, "an adjustment renews"
        assert requested(driver) == [300.0, 500.0]
        assert clock_of(driver) == 1.2e9
        book.adjust(USER, ACCESS, lease.id, PowerConfig(sm_clock=Hertz(1.0e9)))
        assert requested(driver) == [500.0, 500.0], "a cap that is asked for no longer goes back at once"
        book.release(USER, lease.id)
        assert clock_of(driver) is None
        assert requested(driver) == [500.0, 500.0]

    def test_a_refused_one_leaves_the_limits_of_before(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire
    ) -> None:
        lease = acquire("GPU-1", "GPU-2")
        original = driver.set_cap

        def refusing(device: str, cap: Watts) -> None:
            if device == "GPU-2" and cap == 300.0:
                raise ControlError("GPU-2: GPU is busy.")
            original(device, cap)

        driver.set_cap = refusing  # type: ignore[method-assign]
        with pytest.raises(ControlError, match="GPU is busy"):
            book.adjust(USER, ACCESS, lease.id, PowerConfig(cap=Watts(300.0)))
        assert requested(driver) == [400.0, 400.0]
        assert lease.power == CAP
        book.release(USER, lease.id)
        assert requested(driver) == [500.0, 500.0]

    def test_many_refused_ones_do_not_fill_the_journal(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, journal: Journal
    ) -> None:
        lease = acquire()
        driver.set_cap = _never  # type: ignore[method-assign]
        for watts in range(200, 400):
            with pytest.raises(ControlError):
                book.adjust(USER, ACCESS, lease.id, PowerConfig(cap=Watts(float(watts))))
        (entry,) = journal.entries()
        assert len(entry.set_milliwatts) <= 16

    def test_does_not_overwrite_what_someone_else_set(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire
    ) -> None:
        lease = acquire()
        driver.devices["GPU-1"].requested = Watts(222.0)
        book.adjust(USER, ACCESS, lease.id, PowerConfig(cap=Watts(300.0)))
        assert requested(driver) == [222.0, 500.0]
        assert lease.document(Seconds(0.0))["foreign"] == ["GPU-1"]


class TestLooksAfter:
    """dbkinghorn/nv-gpu-powerlimit-setup#1, olafkfreund/nixos_config#1396: a limit is lost with the driver."""

    def test_what_a_driver_forgot_is_set_again(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        acquire("GPU-1", power=PowerConfig(cap=Watts(400.0), sm_clock=Hertz(1.2e9)))
        pass_time(clock, book, LOOK_EVERY)
        driver.devices["GPU-1"].reload()
        pass_time(clock, book, LOOK_EVERY)
        assert requested(driver) == [400.0, 500.0]
        assert driver.devices["GPU-1"].clock == 1.2e9

    def test_and_the_value_found_before_comes_back_at_the_end(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        lease = acquire()
        driver.devices["GPU-1"].reload()
        pass_time(clock, book, LOOK_EVERY)
        book.release(USER, lease.id)
        assert requested(driver) == [500.0, 500.0]

    def test_a_clock_that_a_driver_forgot_is_locked_again(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        acquire(power=PowerConfig(sm_clock=Hertz(1.2e9)))
        driver.devices["GPU-1"].reload()
        pass_time(clock, book, LOOK_EVERY)
        assert driver.devices["GPU-1"].clock == 1.2e9

    def test_someone_elses_default_is_not_taken_for_a_forgotten_limit(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        lease = acquire()
        driver.devices["GPU-1"].requested = Watts(650.0)  # by hand; the driver lives on
        pass_time(clock, book, 5 * LOOK_EVERY - 1)
        assert requested(driver) == [650.0, 500.0]
        assert lease.devices["GPU-1"].foreign
        book.release(USER, lease.id)
        assert requested(driver) == [650.0, 500.0]

    def test_what_a_boot_script_set_after_a_reload_is_left_alone(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        acquire()
        driver.devices["GPU-1"].reload()
        driver.devices["GPU-1"].requested = Watts(450.0)
        pass_time(clock, book, LOOK_EVERY)
        assert requested(driver) == [450.0, 500.0]

    def test_a_driver_that_is_away_is_asked_again_and_nothing_ends(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock
    ) -> None:
        lease = acquire(life=60.0)
        gone = driver.devices.pop("GPU-1")
        pass_time(clock, book, 5 * LOOK_EVERY)
        gone.reload()
        driver.devices["GPU-1"] = gone
        pass_time(clock, book, LOOK_EVERY)
        assert gone.requested == 400.0
        assert lease.deadline > clock.now()

    def test_a_refused_restore_is_tried_until_it_holds_and_bars_the_device_meanwhile(
        self, driver: FakeLimits, book: LeaseBook, acquire: Acquire, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        lease = acquire()
        original = driver.set_cap
        driver.set_cap = _never  # type: ignore[method-assign]
        with pytest.raises(ControlError, match="could not be put back yet"):
            book.release(USER, lease.id)
        with pytest.raises(ControlError, match="tried again"):
            acquire(peer=ROOT)
        with caplog.at_level(logging.WARNING):
            pass_time(clock, book, 3 * LOOK_EVERY)
        assert book.busy
        driver.set_cap = original  # type: ignore[method-assign]
        pass_time(clock, book, LOOK_EVERY)
        assert requested(driver) == [500.0, 500.0]
        assert not book.busy


def test_a_life_is_not_over_because_a_counter_was_unknown() -> None:
    driver = FakeLimits(("GPU-1",))
    life = driver.life("GPU-1")
    silent = replace(life, energy=None, load=None)
    assert not life.ended_before(silent)
    assert life.followed_by(silent) == life
    assert life.ended_before(replace(life, energy=Joules(0.0)))


def _never(device: str, cap: Watts) -> None:
    raise ControlError(f"{device}: GPU is lost.")

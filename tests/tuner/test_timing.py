"""The budget in seconds and in joules, before and after a restart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from energyopt.core.clock import FakeClock
from energyopt.core.leases import FINISHED
from energyopt.core.study import Budget, Event
from energyopt.core.units import Joules, Seconds
from tuner.timing import Timing


def test_joules_are_a_budget_of_their_own() -> None:
    timing = Timing(Budget(trials=99, verify_pairs=1, joules=Joules(1000.0)), FakeClock(), ())
    assert timing.fits_another  # nothing is known yet
    timing.note(Seconds(1.0), ran=True, joules=Joules(250.0))
    assert timing.fits_another  # 750 left for one trial and a pair
    timing.note(Seconds(1.0), ran=True, joules=Joules(250.0))
    assert timing.fits(2)
    assert not timing.fits_another


def test_what_was_not_measured_costs_nothing_that_is_known() -> None:
    timing = Timing(Budget(trials=99, joules=Joules(1.0)), FakeClock(), ())
    timing.note(Seconds(1.0), ran=True)
    assert timing.fits(1000)


def test_joules_spent_before_a_restart_count() -> None:
    data = {"seconds": 5.0, "ran": True, "joules": 900.0}
    events = [Event(id=1, at=datetime(2026, 1, 1, tzinfo=UTC), kind=FINISHED, data=data)]
    timing = Timing(Budget(trials=99, joules=Joules(1000.0)), FakeClock(), events)
    assert not timing.fits(1)
    timing.limit(Budget(trials=99, joules=Joules(5000.0)))
    assert timing.fits(4)


def test_trials_side_by_side_take_their_time_once() -> None:
    def ended(number: int, at: float, seconds: float) -> Event:
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at)
        return Event(id=number, at=moment, kind=FINISHED, data={"seconds": seconds, "ran": True, "joules": 10.0})

    events = [ended(1, 10.0, 10.0), ended(2, 12.0, 11.0), ended(3, 30.0, 5.0)]
    timing = Timing(Budget(trials=99, seconds=Seconds(100.0), verify_pairs=0), FakeClock(), events)
    assert timing.left == 100.0 - (12.0 + 5.0)
    metered = Timing(Budget(trials=99, joules=Joules(55.0), verify_pairs=0), FakeClock(), events)
    assert metered.fits_beside(1)  # 25 J are left: for one more beside one that is under way
    assert not metered.fits_beside(2)

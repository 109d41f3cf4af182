"""What is learned of seconds and joules, and what is counted as saved and as spent."""

from __future__ import annotations

import pytest

from energyopt.core.config import KvConfig
from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.results import EnergyTotal, Source
from energyopt.core.units import Joules, Seconds
from engine.kv.chooser import LoadAlways, LoadIfCheaper
from engine.kv.economy import Economy
from engine.kv.ports import LoadRecord
from engine.offload import choose_loads

WATTS = 50.0


class Sensor:
    """Draws 50 W, and knows what happened until ``covered``."""

    def __init__(self) -> None:
        self.covered = 1e9

    def __call__(self, start: float, end: float) -> EnergyTotal | None:
        if end > self.covered:
            return None
        return EnergyTotal(joules=Joules(WATTS * (end - start)), error=Joules(0.0), sources=(Source.COUNTER,))


def _prefill(start: float, tokens: int, per_token: float = 0.01, **cached: int) -> StepRecord:
    share = StepShare("r", Phase.PREFILL, tokens, 0, cached)
    return StepRecord(Seconds(start), Seconds(start + tokens * per_token), ("gpu",), (share,))


def _load(start: float, seconds: float, size: int, tier: str = "host", *, good: bool = True) -> LoadRecord:
    return LoadRecord(start, start + seconds, {tier: 1}, size, good)


def _taught(sensor: Sensor | None) -> Economy:
    economy = Economy(sensor)
    for at, tokens in enumerate((100, 200, 400)):
        economy.on_step(_prefill(10.0 * at, tokens))
    for at, size in enumerate((1000, 2000, 4000)):
        economy.on_load(_load(100.0 + 10 * at, size * 1e-4, size))
    return economy


def test_seconds_and_joules_of_tokens_and_bytes_are_learned() -> None:
    economy = _taught(Sensor())
    assert economy.prefill_seconds.slope == pytest.approx(0.01)
    assert economy.prefill_joules.slope == pytest.approx(0.01 * WATTS)
    assert economy.load_seconds["host"].of(3000) == pytest.approx(0.3)
    assert economy.load_joules["host"].of(3000) == pytest.approx(0.3 * WATTS)
    assert economy.counts().spent == {("host", "counter"): pytest.approx(0.7 * WATTS)}


def test_a_hit_saves_what_its_tokens_would_have_taken() -> None:
    economy = _taught(Sensor())
    economy.on_step(_prefill(200.0, 20, device=64, host=32))
    assert economy.counts().saved == {
        "device": pytest.approx(64 * 0.01 * WATTS),
        "host": pytest.approx(32 * 0.01 * WATTS),
    }


def test_without_sensors_no_joule_is_known_and_seconds_are() -> None:
    economy = _taught(None)
    economy.on_step(_prefill(200.0, 20, device=64))
    assert (economy.counts().saved, economy.counts().spent) == ({}, {})
    assert economy.load_seconds["host"].of(1000) is not None
    assert not economy.measures


def test_a_window_waits_until_the_sensors_cover_it_and_is_given_up_when_it_is_old() -> None:
    sensor = Sensor()
    economy = Economy(sensor)
    sensor.covered = 0.0
    for at in range(3):
        economy.on_step(_prefill(float(10 * at), 100))
    assert economy.prefill_joules.slope is None
    sensor.covered = 15.0
    economy.on_step(_prefill(40.0, 100))
    sensor.covered = 1e9
    economy.on_step(_prefill(200.0, 100))
    economy.on_step(_prefill(210.0, 100))
    assert economy.prefill_joules.slope == pytest.approx(0.01 * WATTS)


def test_a_load_beside_a_step_is_estimated_from_those_that_ran_alone() -> None:
    economy = _taught(Sensor())
    economy.on_step(_prefill(300.0, 100))
    economy.on_load(_load(300.5, 0.9, 2000))
    assert economy.counts().spent["host", "estimated"] == pytest.approx(0.2 * WATTS)


@pytest.mark.parametrize(
    "load", [_load(0.0, 1.0, 1000, good=False), LoadRecord(0.0, 1.0, {"host": 1, "disk": 1}, 1000, good=True)]
)
def test_failed_and_mixed_loads_teach_nothing(load: LoadRecord) -> None:
    economy = Economy(Sensor())
    for _ in range(5):
        economy.on_load(load)
    assert economy.load_seconds == {}
    assert economy.counts().spent == {}


def test_decodes_teach_nothing_about_prefill() -> None:
    economy = Economy(Sensor())
    shares = (StepShare("a", Phase.PREFILL, 100, 0), StepShare("b", Phase.DECODE, 1, 50))
    for at in range(5):
        economy.on_step(StepRecord(Seconds(at), Seconds(at + 0.5), ("gpu",), shares))
    assert economy.prefill_seconds.slope is None


def test_the_policy_is_the_configurations(caplog: pytest.LogCaptureFixture) -> None:
    measured, blind = _taught(Sensor()), _taught(None)
    assert isinstance(choose_loads(KvConfig(), measured, 100), LoadAlways)
    faster = choose_loads(KvConfig(tier_load="faster"), measured, 100)
    cheaper = choose_loads(KvConfig(tier_load="cheaper"), measured, 100)
    assert isinstance(faster, LoadIfCheaper)
    assert isinstance(cheaper, LoadIfCheaper)
    assert faster._compute is measured.prefill_seconds
    assert cheaper._compute is measured.prefill_joules
    assert not caplog.records
    unmeasured = choose_loads(KvConfig(tier_load="cheaper"), blind, 100)
    assert isinstance(unmeasured, LoadIfCheaper)
    assert unmeasured._compute is blind.prefill_seconds
    assert "decided by time" in caplog.text


def test_a_tier_that_became_slow_is_left_and_taken_again_when_it_is_fast() -> None:
    economy = _taught(Sensor())
    policy = choose_loads(KvConfig(tier_load="faster", block_tokens=16), economy, 1000)
    wanted = ["host"] * 4
    assert policy.worth_loading(wanted) == 4
    for at in range(20):
        economy.on_load(_load(1000.0 + 20 * at, 10.0, 4000))
    assert policy.worth_loading(wanted) == 0
    probes = 0
    for at in range(32 * 60):
        if policy.worth_loading(wanted):
            probes += 1
            economy.on_load(_load(2000.0 + at, 0.001, 4000))
    assert probes > 60
    assert policy.worth_loading(wanted) == 4

"""Joules as carbon and money: known where everything is known, absent elsewhere, at a boundary that is stated."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text

from energyopt.core.clock import FakeClock
from energyopt.core.config import parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.footprint import FootprintConfig, boundary, describe_boundary
from energyopt.core.results import EnergyTotal, Scope, Source
from energyopt.core.units import Joules
from telemetry.exporter import Exporter
from telemetry.fake import FakeSource
from telemetry.footprint import Rates, RunningFootprint
from telemetry.grid import ConstantGrid, SeriesGrid, read_grid
from telemetry.meter import Meter

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KWH = 3.6e6
ONE_KWH = EnergyTotal(joules=Joules(KWH), error=Joules(KWH / 10), sources=(Source.COUNTER,))


def rates(scopes: Sequence[Scope] = (Scope.GPU,), **config: Any) -> Rates:
    return Rates(parse_config(FootprintConfig, config), scopes)


def hours(count: float) -> datetime:
    return NOON + timedelta(hours=count)


def test_a_kilowatt_hour() -> None:
    found = rates(pue=1.2, grid=400.0, price_per_kilowatt_hour=0.25, currency="EUR").of(ONE_KWH, NOON, NOON)
    assert found.joules == pytest.approx(1.2 * KWH)
    assert found.carbon_grams == pytest.approx(480.0)
    assert found.carbon_error_grams == pytest.approx(48.0)
    assert found.cost == pytest.approx(0.3)
    assert (found.currency, found.boundary) == ("EUR", "gpu+pue")


def test_unknown_stays_absent() -> None:
    found = rates(pue=1.0).of(ONE_KWH, NOON, NOON)
    assert (found.carbon_grams, found.carbon_error_grams, found.cost, found.currency) == (None, None, None, None)
    assert rates(grid=0.0).of(ONE_KWH, NOON, NOON).carbon_grams == 0.0  # a grid without carbon is known
    assert FootprintConfig().empty
    assert not FootprintConfig(pue=1.1).empty


@pytest.mark.parametrize(
    ("scopes", "pue", "label", "words"),
    [
        ((Scope.GPU, Scope.MODULE), None, "gpu", "GPU boards; idle time included"),
        ((Scope.CPU_PACKAGE, Scope.DRAM), 1.2, "cpu+pue", "CPU packages, the building (PUE); idle time included"),
        ((Scope.GPU, Scope.CPU_PACKAGE), None, "gpu+cpu", "GPU boards, CPU packages; idle time included"),
        ((Scope.SOCKET,), None, "gpu", "GPU boards; idle time included"),
        ((), None, "nothing", "nothing; idle time included"),
    ],
)
def test_the_boundary_is_stated(scopes: Sequence[Scope], pue: float | None, label: str, words: str) -> None:
    assert boundary(scopes, pue) == label
    assert describe_boundary(label, idle=True) == words


@pytest.mark.parametrize(
    "config",
    [
        {"pue": 0.9},
        {"pue": float("nan")},
        {"price_per_kilowatt_hour": -1},
        {"currency": "euro"},
        {"grid": "no-such-file.csv"},
        {"grid": -1.0},
        {"grid": 1e9},
        {"grid": "nan"},
    ],
)
def test_settings_that_cannot_be(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        rates(**config)


class TestSeries:
    grid = SeriesGrid([hours(0), hours(1), hours(2)], [100.0, 300.0, 200.0])

    def test_mean_over_steps(self) -> None:
        assert self.grid.mean(hours(0), hours(0)) == 100.0
        assert self.grid.mean(hours(0), hours(1)) == 100.0
        assert self.grid.mean(hours(0.5), hours(1.5)) == pytest.approx(200.0)
        assert self.grid.mean(hours(0), hours(3)) == pytest.approx(200.0)

    @pytest.mark.parametrize(("start", "end"), [(-0.1, 1.0), (2.0, 3.1), (4.0, 5.0)])
    def test_outside_nothing_is_known(self, start: float, end: float) -> None:
        assert self.grid.mean(hours(start), hours(end)) is None

    @given(cuts=st.lists(st.floats(0, 3), min_size=3, max_size=3).map(sorted))
    def test_means_add_up(self, cuts: list[float]) -> None:
        a, b, c = cuts
        parts = [(self.grid.mean(hours(x), hours(y)) or 0.0) * (y - x) for x, y in ((a, b), (b, c))]
        assert sum(parts) == pytest.approx((self.grid.mean(hours(a), hours(c)) or 0.0) * (c - a), abs=1e-3)

    def test_from_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "grid.csv"
        file.write_text(
            "time,grams_per_kwh\n2026-01-01T12:00:00Z,360\n2026-01-01T14:00:00+01:00,720\n", encoding="utf-8"
        )
        assert read_grid(file).mean(hours(0.5), hours(1.5)) == pytest.approx(1.5e-4)
        found = rates(grid=str(file)).of(ONE_KWH, hours(0), hours(1))
        assert found.carbon_grams == pytest.approx(360.0)
        assert rates(grid=str(file)).of(ONE_KWH, hours(1), hours(9)).carbon_grams is None

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "must begin with the columns"),
            ("time,watts\n", "must begin with the columns"),
            ("time,grams_per_kwh\n2026-01-01T12:00:00Z,1\n", "at least two rows"),
            ("time,grams_per_kwh\n2026-01-01T12:00:00,1\n", "line 2: times must grow and name their zone"),
            ("time,grams_per_kwh\n2026-01-02T12:00:00Z,1\n2026-01-01T12:00:00Z,1\n", "line 3: times must grow"),
            ("time,grams_per_kwh\nnoon,1\n", "line 2: Invalid isoformat"),
            ("time,grams_per_kwh\n2026-01-01T12:00:00Z\n", "line 2"),
            ("time,grams_per_kwh\n2026-01-01T12:00:00Z,9999\n", "between 0 and 5000"),
        ],
    )
    def test_files_that_are_none(self, tmp_path: Path, text: str, words: str) -> None:
        file = tmp_path / "grid.csv"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            read_grid(file)


class TestRunning:
    def test_follows_the_grid_between_calls(self) -> None:
        config = rates(pue=2.0, grid=100.0, price_per_kilowatt_hour=1.0)
        config.grid = TestSeries.grid
        running = RunningFootprint(config)
        for hour, joules in ((0.0, 50.0), (1.0, 60.0), (2.0, 60.0), (3.0, 61.0)):
            running.advance(hours(hour), joules)
        assert running.grams == pytest.approx(2 * (10 * 100 + 1 * 200))
        assert running.cost == pytest.approx(2 * 11 / KWH)
        running.advance(hours(4), 71.0)
        assert running.grams == pytest.approx(2 * (10 * 100 + 1 * 200))
        assert running.unknown_joules == pytest.approx(20.0)
        assert running.intensity is None

    @given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 1e6)), max_size=20))
    def test_only_grows_whatever_the_clock_does(self, events: list[tuple[float, float]]) -> None:
        running = RunningFootprint(rates(grid=400.0, price_per_kilowatt_hour=0.2))
        before = (0.0, 0.0)
        for hour, joules in events:
            running.advance(hours(hour), joules)
            assert (running.grams, running.cost) >= before
            before = (running.grams, running.cost)


def test_metrics() -> None:
    clock = FakeClock()
    meter = Meter([FakeSource(clock)], clock)
    config = rates(pue=1.5, grid=360.0, price_per_kilowatt_hour=0.36, currency="EUR")
    exporter = Exporter(meter, "m", rates=config, clock=clock)
    for _ in range(100):
        clock.advance(0.1)
        meter.sampler.step()
    found: dict[str, Any] = {
        sample.name: (sample.labels, sample.value)
        for family in parse_text(exporter.render()[0].decode())
        for sample in family.samples
    }
    joules = 1.5 * (meter.channels[0].curve.total or 0.0)
    assert joules > 4000
    place = {"model": "m", "boundary": "gpu+pue"}
    assert found["energyopt_carbon_grams_total"] == (place, pytest.approx(joules * 1e-4))
    assert found["energyopt_energy_cost_total"] == ({**place, "currency": "EUR"}, pytest.approx(joules * 1e-7))
    assert found["energyopt_carbon_unknown_energy_joules_total"] == (place, 0.0)
    assert found["energyopt_grid_carbon_grams_per_joule"] == ({"model": "m"}, pytest.approx(1e-4))
    assert found["energyopt_pue_ratio"] == ({"model": "m"}, 1.5)


def test_without_settings_or_sensors_there_is_no_series() -> None:
    clock = FakeClock()
    for exporter in (
        Exporter(Meter([FakeSource(clock)], clock), "m"),
        Exporter(Meter((), clock), "m", rates=rates(grid=400.0), clock=clock),
    ):
        text = exporter.render()[0].decode()
        assert not [word for word in ("carbon", "cost_total", "pue", "grid") if word in text]


def test_one_number_for_all_time() -> None:
    assert ConstantGrid(3600.0).mean(hours(0), hours(9)) == pytest.approx(1e-3)

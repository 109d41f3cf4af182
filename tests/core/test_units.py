"""Every conversion goes both ways, every unit has its factor, and nonsense is refused in one sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core import units
from energyopt.core.errors import ConfigError
from energyopt.core.units import (
    Hertz,
    Watts,
    format_duration,
    format_figure,
    format_si,
    parse_bytes,
    parse_hertz,
    parse_seconds,
    parse_watts,
)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_seconds, "500ms", 0.5),
        (parse_seconds, "1.5", 1.5),
        (parse_seconds, " 2 min ", 120),
        (parse_seconds, "3us", 3e-6),
        (parse_seconds, "3µs", 3e-6),
        (parse_seconds, "1h", 3600),
        (parse_seconds, ".5s", 0.5),
        (parse_seconds, "1e-3s", 1e-3),
        (parse_seconds, "0", 0),
        (parse_watts, "300", 300),
        (parse_watts, "0.3kW", 300),
        (parse_watts, "1500mW", 1.5),
        (parse_hertz, "1.2GHz", 1.2e9),
        (parse_hertz, "1410 MHz", 1.41e9),
        (parse_hertz, "5kHz", 5e3),
        (parse_bytes, "2GiB", 2**31),
        (parse_bytes, "2GB", 2 * 10**9),
        (parse_bytes, "1.5KiB", 1536),
        (parse_bytes, "7", 7),
    ],
)
def test_quantities(parse: Callable[[str], float], text: str, expected: float) -> None:
    assert parse(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("parse", [parse_seconds, parse_watts, parse_hertz, parse_bytes])
@pytest.mark.parametrize(
    "text", ["", " ", "s", "-1", "+1", "1,5", "1.", "1.2.3", "1 2", "nan", "inf", "1e400", "1 parsec", "1MS", "1e", "٣"]
)
def test_what_is_no_quantity_is_refused(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.message.startswith(f"{text!r} is not a ")
    assert "expected a number with one of the units" in caught.value.message


def test_units_of_another_quantity_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'5W' is not a duration: .* us, µs, ms, s, min, h"):
        parse_seconds("5W")


@pytest.mark.parametrize("piece", ["1", " ", ".1", "1.1", "s", "e1"])
def test_hostile_length_costs_little(piece: str) -> None:
    begin = time.process_time()
    with pytest.raises(ConfigError):
        parse_seconds("1" + piece * 50_000 + "!")
    assert time.process_time() - begin < 0.5  # quadratic would be minutes


@given(st.integers(0, 10**7))
def test_setters_get_back_what_readers_gave(value: int) -> None:
    assert units.milliwatts(units.watts_from_milliwatts(value)) == value
    assert units.megahertz(units.hertz_from_megahertz(value)) == value


def test_setters_round_to_the_nearest() -> None:
    assert units.milliwatts(Watts(0.0016)) == 2
    assert units.megahertz(Hertz(1.4996e9)) == 1500


def test_counters() -> None:
    assert units.joules_from_millijoules(2500) == 2.5
    assert units.joules_from_microjoules(2_500_000) == 2.5
    assert units.bytes_from_kibibytes(3) == 3072


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "J", "—"),
        (0.0, "J", "0 J"),
        (0.0123, "s", "12.3 ms"),
        (1.5e-5, "s", "15 µs"),
        (2e-9, "s", "2e-09 s"),
        (999.4, "W", "999 W"),
        (999.96, "W", "1 kW"),
        (0.99996, "s", "1 s"),
        (1.2e9, "Hz", "1.2 GHz"),
        (-1500.0, "W", "-1.5 kW"),
        (math.inf, "s", "inf s"),
        (math.nan, "s", "nan s"),
    ],
)
def test_format(value: float | None, unit: str, expected: str) -> None:
    assert format_si(value, unit) == expected


@given(st.floats(1e-6, 1e11))
def test_format_keeps_three_digits(value: float) -> None:
    number, unit = format_si(value, "W").split()
    factor = {"GW": 1e9, "kW": 1e3, "MW": 1e6, "W": 1.0, "mW": 1e-3, "µW": 1e-6}[unit]
    assert float(number) * factor == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.01234, "0.0123"), (13.84, "13.8"), (150.0, "150"), (12345.6, "12,346"), (0.0, "0")],
)
def test_a_figure_is_never_written_in_powers_of_ten(value: float | None, text: str) -> None:
    assert format_figure(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.2, "0 s"), (48.0, "48 s"), (59.6, "1 min"), (150.0, "2 min 30 s"), (7200.0, "2 h")],
)
def test_a_duration_is_read_at_a_glance(value: float | None, text: str) -> None:
    assert format_duration(value) == text


@pytest.mark.parametrize(("text", "interval"), [("dense", None), ("0", 0), ("32768", 32768)])
def test_intervals(text: str, interval: int | None) -> None:
    assert units.parse_interval(text) == interval


@pytest.mark.parametrize("text", ["", "-1", "1.5", "none", "１２", "Dense"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="or 'dense'"):
        units.parse_interval(text)

"""SI quantities and the only conversions from and to foreign units.

Everything inside the project is joules, watts, seconds, hertz, bytes and tokens. A module that reads a foreign
unit converts it here, once, at the border. The types are ``NewType`` aliases: they cost nothing at run time and
let mypy tell watts from joules.
"""

from __future__ import annotations

import math
import re
from typing import NewType

from .errors import ConfigError

Joules = NewType("Joules", float)
Watts = NewType("Watts", float)
Seconds = NewType("Seconds", float)
Hertz = NewType("Hertz", float)
Bytes = NewType("Bytes", int)
Tokens = NewType("Tokens", int)

_DURATION = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_POWER = {"mW": 1e-3, "W": 1.0, "kW": 1e3}
_FREQUENCY = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
_SIZE = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# No two neighbours match the same character, so a long text that does not match costs linear time.
_QUANTITY = re.compile(r"((?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)")


def joules_from_millijoules(value: float) -> Joules:
    """NVML's energy counter counts millijoules."""
    return Joules(value / 1e3)


def joules_from_microjoules(value: float) -> Joules:
    """RAPL counts microjoules."""
    return Joules(value / 1e6)


def watts_from_milliwatts(value: float) -> Watts:
    """NVML reports power and limits in milliwatts."""
    return Watts(value / 1e3)


def milliwatts(value: Watts) -> int:
    """Watts as NVML's setters want them, rounded to the nearest milliwatt."""
    return round(value * 1e3)


def hertz_from_megahertz(value: float) -> Hertz:
    """Drivers report clocks in megahertz."""
    return Hertz(value * 1e6)


def megahertz(value: Hertz) -> int:
    """Hertz as drivers' setters want them, rounded to the nearest megahertz."""
    return round(value / 1e6)


def bytes_from_kibibytes(value: int) -> Bytes:
    """``/proc`` reports memory in kibibytes (and calls them kB)."""
    return Bytes(value * 1024)


def bytes_from_gibibytes(value: float) -> Bytes:
    """Options named ``...-gib-...`` take gibibytes. Raises ConfigError for what is no size."""
    if not math.isfinite(value):
        raise ConfigError(f"{value} GiB is not a size: expected a finite number.")
    return Bytes(round(value * 2**30))


def parse_seconds(text: str) -> Seconds:
    """``"500ms"`` -> 0.5. A bare number is seconds. Raises ConfigError."""
    return Seconds(_parse(text, _DURATION, "s", "a duration"))


def parse_watts(text: str) -> Watts:
    """``"300W"`` -> 300.0. A bare number is watts. Raises ConfigError."""
    return Watts(_parse(text, _POWER, "W", "a power"))


def parse_hertz(text: str) -> Hertz:
    """``"1.2GHz"`` -> 1.2e9. A bare number is hertz. Raises ConfigError."""
    return Hertz(_parse(text, _FREQUENCY, "Hz", "a frequency"))


def parse_bytes(text: str) -> Bytes:
    """``"2GiB"`` -> 2147483648. A bare number is bytes. Raises ConfigError."""
    return Bytes(round(_parse(text, _SIZE, "B", "a size")))


def parse_interval(text: str) -> int | None:
    """``"32768"`` -> 32768 tokens; ``"dense"`` -> None, no interval. Raises ConfigError."""
    if text == "dense":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{text!r} is not an interval: expected a number of tokens, 0 or more, or 'dense'.")
    return int(text)


def _parse(text: str, table: dict[str, float] | dict[str, int], default: str, what: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    unit = str(match.group(2) or default) if match else ""
    value = float(match.group(1)) * table[unit] if match and unit in table else math.inf
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is not {what}: expected a number with one of the units {', '.join(table)}.")
    return value


def format_figure(value: float | None, digits: int = 3) -> str:
    """A plain number with ``digits`` significant digits, never in powers of ten; unknown is an em dash, never 0."""
    if value is None:
        return "—"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def format_duration(value: float | None) -> str:
    """``format_duration(150)`` -> ``"2 min 30 s"``, for waiting; unknown is an em dash. Whole seconds, rounded."""
    if value is None or not math.isfinite(value):
        return "—" if value is None else str(value)
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def format_si(value: float | None, unit: str, digits: int = 3) -> str:
    """``format_si(0.0123, "s")`` -> ``"12.3 ms"``; unknown (None) is an em dash, never 0."""
    if value is None:
        return "—"
    if not math.isfinite(value):
        return f"{value} {unit}"
    magnitude = abs(value)
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if magnitude >= factor * 0.9995:
            return f"{value / factor:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"

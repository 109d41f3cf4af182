"""What a number is made of: joules, seconds, tokens, requests. From a metric's name and from a Grafana unit.

A dimension maps base units to their powers; ``{}`` is a plain number and None means that nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from telemetry.catalog import Metric

Dimension = Mapping[str, int]
WATT: Dimension = {"J": 1, "s": -1}

_NAMES: tuple[tuple[str, Dimension], ...] = (
    ("_joules", {"J": 1}),
    ("_watts", WATT),
    ("_seconds", {"s": 1}),
    ("_hertz", {"s": -1}),
    ("_bytes", {"B": 1}),
    ("_celsius", {"°C": 1}),
    ("_grams", {"g": 1}),
)
_UNITS: Mapping[str, Dimension] = {
    "watt": WATT,
    "joule": {"J": 1},
    "watth": {"J": 1},
    "kwatth": {"J": 1},
    "massg": {"J": 1},  # energy times the reader's grams per kilowatt hour
    "s": {"s": 1},
    "hertz": {"s": -1},
    "bytes": {"B": 1},
    "celsius": {"°C": 1},
    "percentunit": {},
    "short": {},
    "cps": {"s": -1},
    "Bps": {"B": 1, "s": -1},
    "reqps": {"req": 1, "s": -1},
}


def of_metric(metric: Metric, series: str = "") -> Dimension:
    """The dimension of a metric's samples; ``series`` is a histogram's ``_bucket``, ``_count`` or ``_sum``."""
    if series in ("_bucket", "_count"):
        return {"req": 1} if "request" in metric.name else {}
    base = metric.name.removesuffix("_total").removesuffix("_by_source").removesuffix("_cached")
    if base.endswith("_tokens"):
        return {"tok": 1}
    if base.endswith("_requests"):
        return {"req": 1}
    return next((dimension for ending, dimension in _NAMES if base.endswith(ending)), {})


def of_unit(unit: str) -> Dimension | None:
    """The dimension that a panel with this Grafana unit shows; None for a unit that fits anything (``none``).

    ``suffix:a/b`` is our way to write a unit that Grafana lacks. Raises ValueError for a unit that is not known here.
    """
    if unit == "none":
        return None
    if unit.startswith("suffix:"):
        top, _, bottom = unit.removeprefix("suffix:").strip().partition("/")
        return {top: 1, **({bottom: -1} if bottom else {})}
    if unit not in _UNITS:
        raise ValueError(f"the unit {unit!r} is not one that boards use: {', '.join(sorted(_UNITS))}")
    return _UNITS[unit]


def times(left: Dimension | None, right: Dimension | None, sign: int = 1) -> Dimension | None:
    """The product, or with ``sign`` -1 the quotient."""
    if left is None or right is None:
        return None
    powers = {unit: left.get(unit, 0) + sign * right.get(unit, 0) for unit in {*left, *right}}
    return {unit: power for unit, power in powers.items() if power}


def written(dimension: Dimension | None) -> str:
    """``J/s``, ``tok/J``, ``1`` or ``?``, for messages."""
    if dimension is None:
        return "?"

    def side(sign: int) -> str:
        return "·".join(unit for unit, power in sorted(dimension.items()) for _ in range(sign * power))

    top, bottom = side(1) or "1", side(-1)
    return f"{top}/{bottom}" if bottom else top

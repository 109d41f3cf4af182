"""Throttle time of an AMD GPU from its firmware's residency counters.

The firmware counts samples, and in how many of them each limiter was at work; the share of new samples times the time
that passed is the time throttled. ``amdsmi_get_violation_status`` would tell the same, but sleeps 100 ms in the
library, and energy is read through the same lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .values import number

COUNTERS = {
    "ppt_residency_acc": "power_cap",
    "prochot_residency_acc": "power_brake",
    "socket_thm_residency_acc": "thermal_sw",
    "vr_thm_residency_acc": "thermal_hw",
    "hbm_thm_residency_acc": "thermal_hw",
}
"""Names of the firmware's counters and the reasons they count for; voltage regulators and memory are one reason."""


class Residency:
    """Seconds throttled since the first look, by reason."""

    def __init__(self) -> None:
        self._before: tuple[float, float, dict[str, float]] | None = None
        self._seconds: dict[str, float] = {}

    def update(self, metrics: Mapping[str, Any], now: float) -> tuple[list[str] | None, dict[str, float]]:
        """Reasons at work since the look before (None: not known) and seconds by reason."""
        samples = number(metrics.get("accumulation_counter"))
        counts = {name: count for name in COUNTERS if (count := number(metrics.get(name))) is not None}
        before = self._before
        if samples is None or not counts:
            return None, {}
        self._before = (now, samples, counts)
        for name in counts:
            self._seconds.setdefault(COUNTERS[name], 0.0)
        if before is None or not samples > before[1]:
            return None, dict(self._seconds)  # first look, or the firmware restarted its count
        active: set[str] = set()
        for name, count in counts.items():
            part = min(1.0, max(0.0, count - before[2].get(name, count)) / (samples - before[1]))
            self._seconds[COUNTERS[name]] += part * (now - before[0])
            active |= {COUNTERS[name]} if part > 0 else set()
        return sorted(active), dict(self._seconds)

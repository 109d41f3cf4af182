"""Whether this machine is fit to be measured: nobody else uses its CPUs, and its devices are cool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from energyopt.core.errors import TelemetryError
from telemetry.ports import StatusSource

IDLE_SHARE = 0.3
"""CPU time that others may use: an agent, a shell; more would be measured as the engine's."""
COOL_CELSIUS = 70.0
"""Most devices slow themselves down between 80 and 90 degrees; a trial has to begin well below."""


class HostBusy:
    """Says why the machine is not fit, None if it is. CPU use is that since the last question."""

    def __init__(self, statuses: Sequence[StatusSource] = (), stat: Path = Path("/proc/stat")) -> None:
        self._statuses, self._stat = tuple(statuses), stat
        self._last = self._times()

    def __call__(self) -> str | None:
        return self._hot() or self._used()

    def _used(self) -> str | None:
        before, self._last = self._last, self._times()
        if before is None or self._last is None:
            return None
        total = self._last[0] - before[0]
        share = 1 - (self._last[1] - before[1]) / total if total > 0 else 0.0
        return f"other programs use {share:.0%} of the CPUs" if share > IDLE_SHARE else None

    def _hot(self) -> str | None:
        for source in self._statuses:
            try:
                degrees = max(source.read().temperature.values(), default=None)
            except TelemetryError:
                continue  # a device that does not say how warm it is cannot be waited for
            if degrees is not None and degrees > COOL_CELSIUS:
                return f"{source.info.device} is at {degrees:.0f} °C"
        return None

    def _times(self) -> tuple[int, int] | None:
        """All and idle clock ticks of the CPUs since boot; None where the kernel does not tell."""
        try:
            words = self._stat.read_text(encoding="ascii", errors="replace").split("\n", 1)[0].split()
        except OSError:
            return None
        ticks = [int(word) for word in words[1:9] if word.isdigit()]
        return (sum(ticks), ticks[3] + ticks[4]) if len(ticks) == 8 else None

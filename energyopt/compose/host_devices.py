"""Devices of this host for the service: what they draw now, their limits, and leases on those."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError, SensorError, SensorUnavailableError, UsageError
from energyopt.core.units import Hertz, Seconds, Watts
from telemetry.page import Page
from telemetry.watch import view

from .caps import clear_caps, machine_gpus, set_caps, view_caps
from .watch import LocalPages, Pages


class HostDevices:
    """``Devices`` of this host. Its sensors are opened at the first look, and let go of by ``close``."""

    def __init__(self, open_pages: Callable[[], Pages] = LocalPages) -> None:
        self._open = open_pages
        self._lock = threading.Lock()
        self._opened: Pages | None = None
        self._first: Page | None = None
        self._before: Page | None = None

    def look(self) -> list[dict[str, object]]:
        """Every sensor, and every device that can be capped; each fact that is unknown is None.

        A device may have several sensors (a package and its memory): each is an entry, under its ``scope``. What can
        be done with the device stands in all of them.
        """
        drawn, states = self._drawn(), self._states()
        entries = [{**device, **states.get(str(device["device"]), {})} for device in drawn]
        measured = {str(device["device"]) for device in drawn}
        entries += [{"device": device, **state} for device, state in states.items() if device not in measured]
        return sorted(entries, key=lambda entry: (str(entry["device"]), str(entry.get("scope", ""))))

    def acquire(self, devices: Sequence[str], cap: float | None, sm_clock: float | None, ttl: float) -> object:
        power = PowerConfig(
            cap=None if cap is None else Watts(cap), sm_clock=None if sm_clock is None else Hertz(sm_clock)
        )
        return set_caps(machine_gpus(devices), power, Seconds(ttl))

    def release(self, devices: Sequence[str]) -> Sequence[str]:
        return clear_caps(machine_gpus(devices))

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = self._first = self._before = None

    def _drawn(self) -> list[dict[str, object]]:
        """What sensors say, over the time since the last look."""
        with self._lock:
            try:
                if self._opened is None:
                    self._opened = self._open()
                page = self._opened.read()
            except (SensorError, SensorUnavailableError):
                return []  # the limits below may still be known
            first, before = self._first or page, self._before or page
            self._first, self._before = first, page
            seen = view(first, before, page).devices
        return [{"device": one.name, **{k: v for k, v in asdict(one).items() if k != "name"}} for one in seen]

    def _states(self) -> dict[str, Mapping[str, Any]]:
        try:
            views = view_caps(machine_gpus(()))
        except (UsageError, ControlError):
            return {}  # no GPU, or none that may be asked
        return {one.state.device: one.document() for one in views}

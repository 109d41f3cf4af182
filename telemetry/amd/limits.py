"""Commands of the child process that read and set limits. Imported there only; units are watts and hertz.

The cap is that of sensor 0, as AMD answers in amdsmi#139. Going back to automatic clocks means the performance level
AUTO: setting the range that is there would keep it (ml-energy/zeus#254). What a set call leaves is read back, since a
driver may refuse silently, and since setting the core clock can reset the memory clock (rocm-systems#8458).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import values
from .library import Library, LibraryError

LEVEL = "AMDSMI_DEV_PERF_LEVEL_"
AUTO, MANUAL = "AUTO", "MANUAL"
LOWEST_SHARE = 0.25
"""Of the highest cap, taken as the lowest where the driver states none: a very low cap can switch the limiter off and
let the board draw more than ever (LACT#207)."""


def power_limits(library: Library, request: Mapping[str, Any]) -> dict[str, float | None]:
    """Requested, default, lowest and highest cap, and the highest clock (None while it is bounded by hand).

    Raises LibraryError where caps are not told.
    """
    handle = library.handle(str(request["device"]))
    told = values.caps(library.perform(library.smi.amdsmi_get_power_cap_info, handle))
    if "requested" not in told or "max" not in told:
        raise LibraryError(
            "the driver states no range of power caps: a virtual GPU, or a board whose cap is fixed; it is only read"
        )
    state = clock_state(library, request)
    low = told.get("min") or told["max"] * LOWEST_SHARE
    return {
        "requested": told["requested"],
        "default": told.get("default"),
        "low": low,
        "high": told["max"],
        "max_clock": state["high"] if state["level"] != MANUAL else None,
    }


def set_cap(library: Library, request: Mapping[str, Any]) -> None:
    """To ``watts``, in the unit in which the driver tells its own cap. Raises LibraryError."""
    handle, smi = library.handle(str(request["device"])), library.smi
    raw = library.perform(smi.amdsmi_get_power_cap_info, handle).get("power_cap")
    unit = 1e6 if (values.number(raw) or 0) > values.MAX_POWER else 1.0
    library.perform(smi.amdsmi_set_power_cap, handle, 0, round(float(request["watts"]) * unit))


def clock_state(library: Library, request: Mapping[str, Any]) -> dict[str, Any]:
    """The performance level and the range of the core clock in hertz."""
    handle = library.handle(str(request["device"]))
    level = str(library.perform(library.smi.amdsmi_get_gpu_perf_level, handle)).removeprefix(LEVEL)
    low, high = _range(library, handle, "GFX")
    return {"level": level, "low": low, "high": high}


def lock_clock(library: Library, request: Mapping[str, Any]) -> None:
    """Bound the core clock above at ``hertz``, and give the memory clock back what that took. Raises LibraryError."""
    handle = library.handle(str(request["device"]))
    ceiling, memory = round(float(request["hertz"]) / 1e6), _range(library, handle, "MEM")[1]
    _bound(library, handle, "sclk", "max", ceiling)
    after = _range(library, handle, "MEM")[1]
    if memory is not None and after is not None and after < memory:
        _bound(library, handle, "mclk", "max", round(memory / 1e6))
    now = _range(library, handle, "GFX")[1]
    if now is not None and round(now / 1e6) > ceiling:
        raise LibraryError(f"the driver took a ceiling of {ceiling} MHz but says {now / 1e6:.0f} MHz")


def unlock_clock(library: Library, request: Mapping[str, Any]) -> None:
    """Back to ``found`` as ``clock_state`` told it; to automatic clocks for None. Raises LibraryError."""
    handle, smi = library.handle(str(request["device"])), library.smi
    found = request.get("found") or {"level": AUTO}
    level = str(found["level"])
    if level == MANUAL:
        for bound, hertz in (("min", found.get("low")), ("max", found.get("high"))):
            if hertz is not None:
                _bound(library, handle, "sclk", bound, round(float(hertz) / 1e6))
        return
    kinds = smi.AmdSmiDevPerfLevel.__members__
    library.perform(smi.amdsmi_set_gpu_perf_level, handle, kinds.get(level, kinds[AUTO]))
    now = str(library.perform(smi.amdsmi_get_gpu_perf_level, handle)).removeprefix(LEVEL)
    if now == MANUAL:
        raise LibraryError("the driver took the performance level back but its clocks are still bounded by hand")


def _bound(library: Library, handle: Any, domain: str, bound: str, megahertz: int) -> None:
    library.perform(library.smi.amdsmi_set_gpu_clk_limit, handle, domain, bound, megahertz)


def _range(library: Library, handle: Any, domain: str) -> tuple[float | None, float | None]:
    info = library.optional(library.smi.amdsmi_get_clock_info, handle, library.smi.AmdSmiClkType[domain]) or {}
    return values.hertz(info.get("min_clk")), values.hertz(info.get("max_clk"))

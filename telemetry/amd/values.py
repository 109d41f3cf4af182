"""What the numbers of ``amdsmi`` mean: units, and the many ways it says that it does not know. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

SENTINELS = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""All ones of each width that the library uses; its Python layer turns only some of them into "N/A"."""
MAX_POWER = 10_000.0
"""Watts above which a number is a sentinel or milliwatts: some firmwares report those (amdgpu_top#30)."""
MAX_CELSIUS = 200
POWER_KEYS: tuple[tuple[str, Literal["instant", "average"]], ...] = (
    ("socket_power", "instant"),
    ("current_socket_power", "instant"),
    ("average_socket_power", "average"),
)
"""Newest name first. MI300 fills the current one, MI200 and Navi the average one."""


def number(value: object) -> float | None:
    """A number that is one: not "N/A", not all ones, not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in SENTINELS or not value >= 0:
        return None
    return float(value)


def power(info: Mapping[str, Any]) -> tuple[float, Literal["instant", "average"]] | tuple[None, None]:
    """Watts and their kind: the first field that is known and not 0, else a known 0.

    A GPU draws power whenever it answers, so a 0 stands for a field that the board does not fill as long as another
    one says more.
    """
    known = ((number(info.get(key)), kind) for key, kind in POWER_KEYS)
    found = [(watts, kind) for watts, kind in known if watts is not None and watts <= MAX_POWER]
    return next((one for one in found if one[0] > 0), found[0] if found else (None, None))


def energy(count: Mapping[str, Any]) -> float | None:
    """Joules: the accumulator (``power`` before 6.2.1) times its resolution in microjoules."""
    accumulator = number(count.get("energy_accumulator", count.get("power")))
    resolution = number(count.get("counter_resolution"))
    return None if accumulator is None or not resolution else accumulator * resolution / 1e6


def cap(value: object) -> float | None:
    """Watts of a power limit, in microwatts on bare metal and in watts on a hypervisor's host; 0 is no limit stated."""
    known = number(value)
    if not known:
        return None
    return known if known <= MAX_POWER else known / 1e6 if known / 1e6 <= MAX_POWER else None


def caps(info: Mapping[str, Any]) -> dict[str, float]:
    """Limits by our names. A lowest limit of 0 is told only where the highest is known: else the range is not."""
    found = {
        "requested": cap(info.get("power_cap")),
        "enforced": cap(info.get("power_cap")),
        "default": cap(info.get("default_power_cap")),
        "max": cap(info.get("max_power_cap")),
        "min": cap(info.get("min_power_cap")),
    }
    if found["max"] is not None and info.get("min_power_cap") == 0:
        found["min"] = 0.0
    return {kind: watts for kind, watts in found.items() if watts is not None}


def celsius(value: object) -> float | None:
    """Degrees. The library has divided by 1000 already (Zeus divides again and reports 0). 0 means no sensor."""
    known = number(value)
    return known if known and known <= MAX_CELSIUS else None


def hertz(value: object) -> float | None:
    """From megahertz; a clock of 0 is one that sleeps, and is told."""
    known = number(value)
    return None if known is None else known * 1e6


def share(value: object) -> float | None:
    """From percent; more than 100 is a sentinel of some boards."""
    known = number(value)
    return None if known is None or known > 100 else known / 100


def physical(bdf: str) -> str:
    """The PCI address without its function: compute partitions of one GPU differ in nothing else."""
    return bdf.rpartition(".")[0] or bdf


def identity(bdf: str, serial: object) -> str:
    """``AMD-`` and the chip's serial number in 16 hex digits; its PCI address where it tells no serial number."""
    text = str(serial).lower().removeprefix("0x")
    known = text.strip("0") and all(digit in "0123456789abcdef" for digit in text)
    return f"AMD-{text:0>16}" if known else f"AMD-{physical(bdf)}"

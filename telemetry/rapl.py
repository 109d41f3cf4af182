"""CPU package and DRAM energy from the kernel's powercap files (RAPL on Intel, the same files on AMD Zen).

Only ``package-*`` zones and their ``dram`` subzones are read: ``psys`` contains the packages, ``core`` and ``uncore``
are parts of one, and ``intel-rapl-mmio`` repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts, joules_from_microjoules

from .ports import Sample, SensorId

POWERCAP = Path("/sys/class/powercap")
MAX_FILE = 64
UNBOUNDED_POWER = 1_000.0
"""Watts assumed for a package that states no limit, to tell one wrap of the counter from several."""


class RaplSource:
    """One RAPL domain, its wrapping counter unrolled.

    Raises SensorUnavailableError if the counter may not be read.
    """

    def __init__(self, clock: Clock, zone: Path, sensor: SensorId) -> None:
        self._clock = clock
        self._counter = zone / "energy_uj"
        self._range = _optional(zone / "max_energy_range_uj")
        limit = _optional(zone / "constraint_0_max_power_uw")
        self.sensor = sensor
        self.source = Source.COUNTER
        self.max_power = Watts(limit / 1e6) if limit else None
        self.relative_error = 0.0
        try:
            self._raw = _number(self._counter)
        except PermissionError as error:
            raise SensorUnavailableError(
                f"{self._counter} may be read by root only: run as root, or give the interpreter the capability with "
                "`sudo setcap cap_dac_read_search=ep $(readlink -f $(command -v python3))`."
            ) from error
        except (OSError, ValueError) as error:
            raise SensorUnavailableError(f"{self._counter} cannot be read: {error}.") from error
        self._at = clock.now()
        self._total = self._raw  # never below the raw value, so that an unexplained fall of that is one of this

    def read(self) -> Sample:
        """Joules without the wraps. Where a wrap cannot be told from a reset, the total falls and the curve judges."""
        try:
            raw, now = _number(self._counter), self._clock.now()
        except (OSError, ValueError) as error:
            raise SensorError(f"{self._counter} could not be read: {error}.") from error
        delta = raw - self._raw
        if delta < 0:
            delta = self._unwrapped(delta, now)
        self._total = self._total + delta if delta >= 0 else raw
        self._raw, self._at = raw, now
        return Sample(at=now, counter=Joules(joules_from_microjoules(self._total)))

    def close(self) -> None:
        """Nothing is held open."""

    def _unwrapped(self, delta: int, now: Seconds) -> int:
        """The delta over one wrap; still negative where the range is unknown or several wraps fit in the time."""
        if self._range is None:
            return delta
        most = (self.max_power or UNBOUNDED_POWER) * (now - self._at) * 1e6
        return delta + self._range if most < self._range else delta


def find_rapl(clock: Clock, root: Path = POWERCAP) -> tuple[RaplSource, ...]:
    """Every package and DRAM domain. Raises SensorUnavailableError if there is none or one may not be read."""
    sources = [RaplSource(clock, zone, sensor) for zone, sensor in _domains(root)]
    if not sources:
        raise SensorUnavailableError(
            f"No RAPL package is listed in {root}: this kernel or virtual machine has none, or a container hides it "
            "(mount the host's /sys elsewhere and name that place: `energyopt agent --root`)."
        )
    return tuple(sources)


def _domains(root: Path) -> Iterator[tuple[Path, SensorId]]:
    for zone in sorted(root.glob("intel-rapl:*")):
        name = _name(zone)
        if zone.name.count(":") != 1 or not name.startswith("package-"):
            continue
        device = f"cpu:{name.removeprefix('package-')}"
        yield zone, SensorId(device, Scope.CPU_PACKAGE)
        for part in _parts(root, zone):
            yield part, SensorId(device, Scope.DRAM)


def _parts(root: Path, zone: Path) -> Iterator[Path]:
    """DRAM subzones; the kernel lists them beside the zone and inside it, so they are told apart by name."""
    found = {path.name: path for base in (zone, root) for path in sorted(base.glob(f"{zone.name}:*"))}
    yield from (path for path in found.values() if _name(path) == "dram")


def _name(zone: Path) -> str:
    try:
        with (zone / "name").open("rb") as file:
            return file.read(MAX_FILE).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    with path.open("rb") as file:
        return int(file.read(MAX_FILE))


def _optional(path: Path) -> int | None:
    """A number that a zone may lack; 0 says nothing either."""
    try:
        return _number(path) or None
    except (OSError, ValueError):
        return None

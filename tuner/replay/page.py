"""Energy from a metrics page: DCGM's exporter or the agent of this project, sampled while a replay runs.

Of slices that repeat the whole device's counter (MIG) only one row a device counts. Of several scopes of one device the
GPU's own is taken, so that nothing is counted twice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError
from energyopt.core.records import StepRecord
from energyopt.core.results import EnergyReading, EnergySplit, Scope
from energyopt.core.units import Seconds, joules_from_millijoules

from .power import PowerSample, energy_of

PERIOD = Seconds(0.5)
MAX_PAGE_BYTES = 16 * 2**20
_PATIENCE = 8
"""Periods to wait for a sample beyond a window; a page takes up to four of them to answer."""
_DCGM_POWER, _DCGM_ENERGY = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_OWN = {
    "energyopt_gpu_energy_joules_total": ("joules", "gpu_uuid"),
    "energyopt_gpu_power_watts": ("watts", "gpu_uuid"),
    "energyopt_cpu_energy_joules_total": ("joules", "package"),
    "energyopt_cpu_power_watts": ("watts", "package"),
}


@dataclass(slots=True)
class _Said:
    """What a page says of one device; ``best`` is the scope that was taken."""

    watts: float | None = None
    joules: float | None = None
    scope: Scope = Scope.GPU
    parts: dict[str, float] = field(default_factory=dict)


def parse_page(text: str, at: Seconds) -> dict[str, tuple[Scope, PowerSample]]:
    """Devices of a page with what they say. Raises SensorError for what is no page of metrics."""
    said: dict[str, _Said] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                _take(said, sample.name, sample.labels, float(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise SensorError(f"The metrics page cannot be read: {error}.") from error
    return {
        device: (
            one.scope,
            PowerSample(at, one.watts, sum(one.parts.values()) if one.parts else one.joules),
        )
        for device, one in said.items()
    }


def _take(said: dict[str, _Said], name: str, labels: Mapping[str, str], value: float) -> None:
    if name in (_DCGM_POWER, _DCGM_ENERGY):
        one = said.setdefault(labels.get("UUID") or labels.get("gpu", "0"), _Said())
        if name == _DCGM_POWER:
            one.watts = value if one.watts is None else max(one.watts, value)
        else:
            joules = joules_from_millijoules(value)
            one.joules = joules if one.joules is None else max(one.joules, joules)
    elif name in _OWN:
        kind, label = _OWN[name]
        scope = labels.get("scope", labels.get("domain", "package"))
        if scope in ("memory", "module") or label not in labels:
            return  # contained in, or containing, the device's own
        gpu = label == "gpu_uuid"
        device = labels[label] if gpu else f"cpu:{labels[label]}:{scope}"
        one = said.setdefault(device, _Said(scope=_scope_of(gpu, scope)))
        if kind == "watts":
            one.watts = value
        else:
            one.parts[labels.get("source", "")] = value


def _scope_of(gpu: bool, scope: str) -> Scope:
    if gpu:
        return Scope.GPU
    return Scope.DRAM if scope == "dram" else Scope.CPU_PACKAGE


class PageMeter:
    """A ``Meter`` over a metrics page at ``url``, sampled by a thread from ``start`` to ``stop``.

    Failures of a sample are counted and show as gaps. ``expected`` devices must be there, if given. ``devices`` are the
    only ones that count (``cpu:0`` stands for all parts of that package), and each must be there. With ``boundary``
    CPUs do not count beside GPUs, as for the sensors of this host.

    ``readings`` blocks until samples lie beyond the window, some periods at most.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        period: Seconds = PERIOD,
        expected: int | None = None,
        devices: Sequence[str] = (),
        boundary: bool = False,
    ) -> None:
        self._url, self._clock, self._period, self._expected = url, clock, period, expected
        self._devices, self._boundary = tuple(devices), boundary
        self._samples: dict[str, list[PowerSample]] = {}
        self._scopes: dict[str, Scope] = {}
        self._failure = ""
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="energy-page", daemon=True)
        self.notes: tuple[str, ...] = ()

    def start(self) -> None:
        """Take the first sample before returning. Raises SensorError if that fails or names no device."""
        with httpx.Client(timeout=5.0) as client:
            self._sample(client)
        if not self._samples:
            raise SensorError(f"{self._url} has none of {_DCGM_POWER}, {_DCGM_ENERGY} or {', '.join(_OWN)}.")
        self._thread.start()

    def stop(self) -> None:
        """End sampling; what was measured stays readable."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _watch(self) -> None:
        with httpx.Client(timeout=self._period * 4) as client:
            while not self._ended.wait(self._period):
                try:
                    self._sample(client)
                except SensorError as error:
                    self._failure = str(error)

    def _sample(self, client: httpx.Client) -> None:
        before = self._clock.now()
        try:
            with client.stream("GET", self._url) as response:
                response.raise_for_status()
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MAX_PAGE_BYTES:
                        raise SensorError(f"{self._url} is larger than {MAX_PAGE_BYTES} bytes.")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SensorError(f"{self._url} cannot be read: {error}.") from error
        at = Seconds((before + self._clock.now()) / 2)
        found = parse_page(body.decode(errors="replace"), at)
        with self._lock:
            for device, (scope, sample) in found.items():
                self._samples.setdefault(device, []).append(sample)
                self._scopes[device] = scope

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        """Every device over the window. Raises SensorError with code and words if one of them is invalid."""
        self._await_end(end)
        with self._lock:
            counted = self._counted()
            taken = {device: tuple(self._samples[device]) for device in counted}
        found = [
            energy_of(device, samples, start, end, scope=self._scopes[device]) for device, samples in taken.items()
        ]
        faults = [fault for one in found for fault in one.faults]
        faults += [f"not_covered: {name} is not on the page" for name in self._devices if not _any(counted, name)]
        gpus = sum(self._scopes[device] is Scope.GPU for device in counted)
        if self._expected is not None and gpus != self._expected:
            faults.append(f"gpu_count: {gpus} GPUs on the page, {self._expected} expected")
        if faults:
            raise SensorError("; ".join(faults))
        self.notes = tuple(note for one in found for note in one.notes)
        return tuple(one.reading for one in found if one.reading is not None)

    def _await_end(self, end: Seconds) -> None:
        """Let samples come until every device has one beyond ``end``: a load that stops with the window leaves none.

        In vain for a page that fails or a device that is gone: then the reading says so.
        """
        give_up = end + _PATIENCE * self._period
        while not self._reaches(end) and self._thread.is_alive() and self._clock.now() < give_up:
            self._ended.wait(self._period / 4)

    def _reaches(self, end: Seconds) -> bool:
        with self._lock:
            return all(self._samples[device][-1].time >= end for device in self._counted())

    def _counted(self) -> list[str]:
        """The devices of the page whose joules are asked for."""
        named = [one for one in self._samples if not self._devices or any(is_part(one, name) for name in self._devices)]
        if self._devices or not self._boundary or Scope.GPU not in (self._scopes[device] for device in named):
            return named
        return [device for device in named if self._scopes[device] is Scope.GPU]

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit | None:
        """Unknown: a page does not say what the energy was for."""
        return None

    @property
    def reasons(self) -> tuple[str, ...]:
        where = f"energy from {self._url}"
        return (where, *([f"a sample failed: {self._failure}"] if self._failure else []), *self.notes)


def _any(devices: Sequence[str], name: str) -> bool:
    return any(is_part(device, name) for device in devices)


def is_part(device: str, name: str) -> bool:
    """Whether a device of a page is, or is a part of, what ``name`` says."""
    return device == name or device.startswith(f"{name}:")

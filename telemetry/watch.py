"""What a person watches, from two pages of metrics of the same process: devices, and what the engine makes of them.

Everything that is not on the pages is None. Rates are over the time between the pages; a counter that fell (another
process answers now) has no rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from energyopt.core.units import Hertz, Joules, Seconds, Watts

from .catalog import CPU, DEVICE, GPU, TOKENS, SensorMetrics
from .page import Page

POWER_KINDS = ("instant", "average", "unknown")
LIMIT_KINDS = ("enforced", "requested")


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One sensor's line. ``energy`` is since the watching began; None stands where nothing tells."""

    name: str
    model: str | None
    scope: str
    up: bool | None
    power: Watts | None
    limit: Watts | None
    clock: Hertz | None
    throttled: tuple[str, ...] | None
    temperature: float | None
    utilization: float | None
    energy: Joules | None
    source: str | None
    age: Seconds | None


@dataclass(frozen=True, slots=True)
class View:
    """The whole screen. Sums are None unless every sensor is in them."""

    devices: tuple[DeviceView, ...]
    power: Watts | None
    energy: Joules | None
    tokens_per_second: float | None
    tokens_per_joule: float | None


def view(first: Page, before: Page, now: Page) -> View:
    """``first`` is the page that energies count from, ``before`` the one that rates are taken against."""
    devices = (*_devices(GPU, first, before, now), *_devices(CPU, first, before, now))
    power = _sum(device.power for device in devices)
    tokens = _rate(before.total(TOKENS, kind="output"), now.total(TOKENS, kind="output"), now.at - before.at)
    joules = _delta(_joules(before), _joules(now))
    spent = now.at - before.at
    made = None if tokens is None else tokens * spent
    return View(
        devices=devices,
        power=None if power is None else Watts(power),
        energy=_as_joules(_sum(device.energy for device in devices)),
        tokens_per_second=tokens,
        tokens_per_joule=made / joules if made is not None and joules else None,
    )


def baseline(first: Page, before: Page, now: Page) -> Page:
    """Where energies count from: as on ``first``, and from now on for what is new or fell since ``before``."""
    samples = {}
    for metric in (GPU.energy, CPU.energy):
        begun, last = (
            {frozenset(labels.items()): value for labels, value in page.of(metric)} for page in (first, before)
        )
        samples[metric.name] = tuple(
            (labels, begun.get(key, value) if value >= last.get(key, value) else value)
            for labels, value in now.of(metric)
            for key in (frozenset(labels.items()),)
        )
    return Page(first.at, samples)


def _devices(metrics: SensorMetrics, first: Page, before: Page, now: Page) -> tuple[DeviceView, ...]:
    name, scope = metrics.energy.labels[:2]
    found = {(labels[name], labels[scope]): None for labels, _ in (*now.of(metrics.energy), *now.of(metrics.up))}
    return tuple(_device(metrics, {name: one, scope: what}, first, before, now) for one, what in found)


def _device(metrics: SensorMetrics, key: dict[str, str], first: Page, before: Page, now: Page) -> DeviceView:
    device, scope = key.values()
    gpu = {"gpu_uuid": device}
    up = now.total(metrics.up, **key)
    power = now.first(metrics.power, "kind", POWER_KINDS, **key)
    if power is None and up != 0:
        power = _rate(before.total(metrics.energy, **key), now.total(metrics.energy, **key), now.at - before.at)
    energy = _delta(first.total(metrics.energy, **key), now.total(metrics.energy, **key))
    limit, clock = now.first(DEVICE.limit, "kind", LIMIT_KINDS, **gpu), now.total(DEVICE.clock, domain="sm", **gpu)
    age = now.total(metrics.age, **key)
    return DeviceView(
        name=device if metrics is GPU else f"cpu:{device}",
        model=next((labels.get("model") for labels, _ in now.of(DEVICE.info, **gpu)), None),
        scope=scope,
        up=None if up is None else up > 0,
        power=None if power is None else Watts(power),
        limit=None if limit is None else Watts(limit),
        clock=None if clock is None else Hertz(clock),
        throttled=_throttled(now, device),
        temperature=now.first(DEVICE.temperature, "sensor", ("gpu", "hotspot"), **gpu),
        utilization=now.first(DEVICE.utilization, "unit", ("compute",), **gpu),
        energy=_as_joules(energy),
        source="+".join(sorted({labels["source"] for labels, _ in now.of(metrics.energy, **key)})) or None,
        age=None if age is None else Seconds(age),
    )


def _throttled(now: Page, device: str) -> tuple[str, ...] | None:
    reasons = list(now.of(DEVICE.throttled, gpu_uuid=device))
    return tuple(labels["reason"] for labels, value in reasons if value > 0) if reasons else None


def _joules(page: Page) -> float | None:
    totals = [total for metrics in (GPU, CPU) if (total := page.total(metrics.energy)) is not None]
    return sum(totals) if totals else None


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) if known and len(known) == len(found) else None


def _delta(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None or now < before else now - before


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    grown = _delta(before, now)
    return None if grown is None or seconds <= 0 else grown / seconds


def _as_joules(value: float | None) -> Joules | None:
    return None if value is None else Joules(value)

"""The watch screen's figures as cells: which columns fit, how each value is written. Knows no terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import NamedTuple

from rich.text import Text

from energyopt.core.units import format_figure, format_si
from telemetry.watch import DeviceView, View

DASH = "—"
NEAR_LIMIT = 0.97
"""Share of the limit at which power is drawn as held by it."""
OLD = 5.0
"""Seconds after which a sensor's newest sample is shown with its age."""


class Column(NamedTuple):
    """``need`` is the width of the screen from which on the column is shown; ``cell`` writes its value."""

    title: str
    need: int
    right: bool
    cell: Callable[[DeviceView], Text]


def columns(width: int) -> list[Column]:
    """Those that fit; the most important ones always do."""
    return [column for column in COLUMNS if width >= column.need]


def rows(view: View, shown: Sequence[Column]) -> list[list[Text]]:
    """One row a device."""
    return [[column.cell(device) for column in shown] for device in view.devices]


def summary(view: View) -> Text:
    """The line above the table: sums, and what the engine makes of them."""
    parts = [
        ("power", format_si(view.power, "W")),
        ("energy", format_si(view.energy, "J")),
        ("output", DASH if view.tokens_per_second is None else f"{format_figure(view.tokens_per_second)} tok/s"),
        ("efficiency", DASH if view.tokens_per_joule is None else f"{format_figure(view.tokens_per_joule)} tokens/J"),
    ]
    line = Text()
    for name, value in parts:
        line.append(f"{name} ", "dim").append(f"{value}   ", "bold")
    return line


def view_json(view: View) -> dict[str, object]:
    """The same in base units."""
    return asdict(view)


def _device(device: DeviceView) -> Text:
    name = device.name if len(device.name) <= 14 else f"{device.name[:13]}…"
    return Text(name, "bold" if device.up is not False else "red")


def _power(device: DeviceView) -> Text:
    if device.up is False:
        return Text("no answer", "red")
    text = Text(format_si(device.power, "W"))
    if device.power is not None and device.limit and device.power >= NEAR_LIMIT * device.limit:
        text.stylize("yellow")
    if device.age is not None and device.age > OLD:
        text.append(f" ({device.age:.0f} s old)", "yellow")
    return text


def _throttle(device: DeviceView) -> Text:
    if device.throttled is None:
        return Text(DASH, "dim")
    return Text(", ".join(device.throttled).replace("_", " "), "yellow") if device.throttled else Text("no", "green")


def _share(value: float | None) -> str:
    return DASH if value is None else f"{value:.0%}"


COLUMNS = (
    Column("device", 0, False, _device),
    Column("power", 0, True, _power),
    Column("limit", 50, True, lambda device: Text(format_si(device.limit, "W"))),
    Column("SM clock", 60, True, lambda device: Text(format_si(device.clock, "Hz", 4))),
    Column("throttle", 72, False, _throttle),
    Column("energy", 0, True, lambda device: Text(format_si(device.energy, "J"))),
    Column("busy", 80, True, lambda device: Text(_share(device.utilization))),
    Column("°C", 86, True, lambda device: Text(format_figure(device.temperature))),
    Column("covers", 98, False, lambda device: Text(device.scope.replace("_", " "))),
    Column("source", 110, False, lambda device: Text(device.source or DASH)),
    Column("model", 132, False, lambda device: Text(device.model or DASH, "dim")),
)

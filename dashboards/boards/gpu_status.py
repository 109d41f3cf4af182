"""What a GPU says about itself beside its energy: limits, clocks, what holds them down, heat and load."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard, units

from telemetry.catalog import DEVICE, GPU

from ..panels import Frame, query, state_panel, time_panel
from .scope import ALL

CHOSEN = 'gpu_uuid=~"$gpu"'
NO_STATUS = "No GPU tells its status here: `energyopt doctor` on the host says why."
NO_LOCK = "No clock is known to be locked here; some drivers do not tell."
CELSIUS = "celsius"
DASHED = {"custom.lineStyle": {"fill": "dash", "dash": [10, 10]}}
ACTIVE = (("1", "held down", "orange"), ("0", "free", "green"))

Panels = tuple[tuple[int, dashboard.Panel], ...]


def limits() -> Panels:
    """Power beside its limits, and clocks beside what they are locked to."""
    caps = Frame(
        "Power against its limits",
        "Power as the driver reports it. `enforced` is the lowest of all limiters and is what holds; where it is below "
        "`requested`, something else (board, rack, thermal) limits the device. `default` is the limit it came with.",
        units.Watt,
        NO_STATUS,
        low=0,
        overrides=(("/^(enforced|requested|default)/", DASHED),),
    )
    kinds = 'kind=~"requested|enforced|default"'
    power = [
        query(ALL.gauge(GPU.power, CHOSEN), "{{kind}} {{scope}} {{gpu_uuid}}"),
        query(ALL.gauge(DEVICE.limit, CHOSEN, kinds), "{{kind}} limit {{gpu_uuid}}"),
    ]
    clocks = Frame(
        "Clocks",
        "Clocks now, and dashed the bounds they are locked to. A clock below its bound with the power at its limit "
        "means that the cap decides, not the lock.",
        units.Hertz,
        NO_STATUS,
        low=0,
        overrides=(("/^locked/", DASHED),),
    )
    speeds = [query(ALL.gauge(DEVICE.clock, CHOSEN), "{{domain}} {{gpu_uuid}}")]
    locks = Frame("Clock locks", "Bounds that somebody locked a clock to.", units.Hertz, NO_LOCK, low=0)
    bounds = [query(ALL.gauge(DEVICE.locked_clock, CHOSEN), "{{domain}} {{bound}} {{gpu_uuid}}")]
    return ((10, time_panel(caps, power)), (8, time_panel(clocks, speeds)), (6, time_panel(locks, bounds)))


def restraints() -> Panels:
    """What slows a device down, how hot it is and how busy."""
    lanes = Frame(
        "Held down by",
        "A lane per reason. `power_cap` under load is a cap that works; anything thermal is cooling that does not.",
        "short",
        NO_STATUS,
        steps=((None, "green"), (1, "orange")),
        mappings=ACTIVE,
    )
    share = Frame(
        "Share of time held down",
        "Seconds per second that each reason held clocks below what was asked for.",
        units.PercentUnit,
        NO_STATUS,
        low=0,
        high=1,
    )
    heat = Frame("Temperature", "By sensor of the device.", CELSIUS, NO_STATUS)
    busy = Frame(
        "Utilization",
        "Share of time that a unit had something to do; says nothing about how much.",
        units.PercentUnit,
        NO_STATUS,
        low=0,
        high=1,
    )
    return (
        (8, state_panel(lanes, query(ALL.gauge(DEVICE.throttled, CHOSEN), "{{reason}} {{gpu_uuid}}"))),
        (6, time_panel(share, [query(ALL.rate(DEVICE.throttle, CHOSEN), "{{reason}} {{gpu_uuid}}")])),
        (5, time_panel(heat, [query(ALL.gauge(DEVICE.temperature, CHOSEN), "{{sensor}} {{gpu_uuid}}")])),
        (5, time_panel(busy, [query(ALL.gauge(DEVICE.utilization, CHOSEN), "{{unit}} {{gpu_uuid}}")])),
    )

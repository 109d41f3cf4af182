"""GPU: every sensor on its own, what holds the device down, and whether its counter can be believed."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import dashboard, units

from telemetry.catalog import CPU, GPU, SensorMetrics

from ..board import Row, build_board, choice
from ..catalog import GPU as UID
from ..energy import WATT_HOUR
from ..panels import Frame, bar_panel, query, stat_panel, state_panel, time_panel
from .governor import leases
from .gpu_status import CHOSEN, limits, restraints
from .scope import ALL, SCOPE, common_variables

NO_GPU = "No GPU sensor answers here: `energyopt doctor` on the host says why."
NO_CPU = "No CPU sensor answers here; RAPL often needs read permission on /sys/class/powercap."
UP_OR_DOWN = (("1", "answers", "green"), ("0", "fails", "red"))


def build() -> dict[str, Any]:
    gpu = choice("gpu", "GPU", "UUID of the device.", (GPU.up,), "gpu_uuid", SCOPE)
    return build_board(
        UID,
        "Power, energy, limits, clocks and heat of each GPU, power of each CPU, and the health of the counters.",
        [
            Row("GPUs", 9, _gpus()),
            Row("Limits and clocks", 9, limits()),
            Row("What holds it down", 8, restraints()),
            Row("Held by a lease", 7, leases()),
            Row("Health of the GPU sensors", 8, _health()),
            Row("Readings that did not count", 7, _readings()),
            Row("CPUs and memory", 8, _cpus()),
        ],
        [*common_variables(), gpu],
    )


def _gpus() -> tuple[tuple[int, dashboard.Panel], ...]:
    frame = Frame(
        "Power: reading against counter",
        "Thin: the power the driver reports, instant or averaged as `kind` says. Counter: the rate of the energy "
        "counter, which no short peak escapes. They should meet; a lasting gap is a sensor to distrust.",
        units.Watt,
        NO_GPU,
        low=0,
        overrides=(("/^counter/", {"custom.lineWidth": 2}),),
    )
    counter = f"sum by (instance, gpu_uuid, scope) ({ALL.rate(GPU.energy, CHOSEN)})"
    total = f"sum by (gpu_uuid) ({ALL.increase(GPU.energy, CHOSEN, window='$__range')})"
    return (
        (
            14,
            time_panel(
                frame,
                [
                    query(ALL.gauge(GPU.power, CHOSEN), "{{kind}} {{scope}} {{gpu_uuid}}"),
                    query(counter, "counter {{scope}} {{gpu_uuid}}"),
                ],
            ),
        ),
        (
            10,
            bar_panel(
                Frame(
                    "Energy in range by GPU", "Energy of each GPU over the chosen range.", units.WattHour, NO_GPU, low=0
                ),
                query(f"sort_desc({total} / {WATT_HOUR})", "{{gpu_uuid}}", instant=True),
            ),
        ),
    )


def _health() -> tuple[tuple[int, dashboard.Panel], ...]:
    return (
        (
            8,
            state_panel(
                Frame(
                    "Sensor answers",
                    "Whether the last reading succeeded.",
                    "short",
                    NO_GPU,
                    steps=((None, "red"), (1, "green")),
                    mappings=UP_OR_DOWN,
                ),
                query(ALL.gauge(GPU.up, CHOSEN), "{{gpu_uuid}} {{scope}}"),
            ),
        ),
        (
            8,
            time_panel(
                Frame(
                    "Counter over integrated power",
                    "Energy by counter over energy by summed power readings. 1 means that two independent "
                    "paths agree; far from 1, the counter or the power reading is wrong.",
                    "none",
                    "Needs a sensor with both a counter and a power reading.",
                    decimals=3,
                ),
                [query(ALL.gauge(GPU.crosscheck, CHOSEN), "{{gpu_uuid}}")],
            ),
        ),
        (
            4,
            stat_panel(
                Frame(
                    "Oldest sample",
                    "Age of the newest sample of the GPU that was read longest ago.",
                    units.Seconds,
                    NO_GPU,
                    steps=((None, "green"), (5, "yellow"), (30, "red")),
                ),
                query(f"max({ALL.gauge(GPU.age, CHOSEN)})"),
            ),
        ),
        (
            4,
            stat_panel(
                Frame(
                    "Slowest counter",
                    "Time between updates of the slowest energy counter: shorter windows than this are guesses.",
                    units.Seconds,
                    "No counter has been seen to tick yet.",
                ),
                query(f"max({ALL.gauge(GPU.tick, CHOSEN)})"),
            ),
        ),
    )


def _readings() -> tuple[tuple[int, dashboard.Panel], ...]:
    def lines(title: str, text: str, expression: str, legend: str, missing: str = NO_GPU) -> dashboard.Panel:
        return time_panel(Frame(title, text, "cps", missing, low=0), [query(expression, legend)])

    return (
        (6, lines("Failed readings", "Driver calls that failed.", ALL.rate(GPU.errors, CHOSEN), "{{gpu_uuid}}")),
        (
            6,
            lines(
                "Readings not believed",
                "Readings that the energy curve refused, by reason.",
                f"sum by (gpu_uuid, reason) ({ALL.rate(GPU.rejected, CHOSEN)})",
                "{{reason}} {{gpu_uuid}}",
                "No reading has been refused, or no GPU sensor answers.",
            ),
        ),
        (
            6,
            lines(
                "Counter resets",
                "Times the hardware counter began anew (driver reload, wrap); the published counter goes on.",
                ALL.rate(GPU.resets, CHOSEN),
                "{{gpu_uuid}}",
            ),
        ),
        (
            6,
            lines(
                "Late readings",
                "Readings that came later than planned: the host is too busy to sample at this rate.",
                ALL.rate(GPU.overruns, CHOSEN),
                "{{gpu_uuid}}",
            ),
        ),
    )


def _cpus() -> tuple[tuple[int, dashboard.Panel], ...]:
    legend = "{{instance}} {{package}} {{domain}}"
    steps = ((None, "red"), (1.0, "green"))
    text = "Whether the last reading succeeded."
    up = Frame("CPU sensor answers", text, "short", NO_CPU, steps=steps, mappings=UP_OR_DOWN)
    return (
        (
            10,
            time_panel(
                Frame(
                    "CPU power",
                    "Rate of the energy counters of packages and memory; an estimate where `source` says so.",
                    units.Watt,
                    NO_CPU,
                    low=0,
                ),
                [query(ALL.rate(CPU.energy), legend + " ({{source}})")],
                stacked=True,
            ),
        ),
        (7, state_panel(up, query(ALL.gauge(CPU.up), legend))),
        (7, _trouble(CPU)),
    )


def _trouble(sensors: SensorMetrics) -> dashboard.Panel:
    frame = Frame("CPU readings that did not count", "Failed and late readings.", "cps", NO_CPU, low=0)
    return time_panel(
        frame,
        [query(f"sum({ALL.rate(sensors.errors)})", "failed"), query(f"sum({ALL.rate(sensors.overruns)})", "late")],
    )

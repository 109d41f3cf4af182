"""Fleet: what all hosts draw, what they make of it, what it costs, and who does worst."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import dashboard, units

from telemetry.catalog import ATTRIBUTED, CPU, GPU, STEPS

from ..board import Row, build_board, text_box
from ..catalog import FLEET
from ..energy import (
    KILOWATT_HOUR,
    WATT_HOUR,
    energy,
    idle_share,
    model_tokens_per_joule,
    output_rate,
    power,
    tokens_per_joule,
)
from ..panels import Frame, bar_panel, query, stat_panel, table_panel, time_panel
from ..promql import either, ratio
from .allowance import allowance, budget_variable
from .scope import ALL, NO_ENERGY, NO_ENGINE, NO_SPLIT, common_variables

TOKENS_PER_JOULE = "suffix:tok/J"
TOKENS_PER_SECOND = "suffix:tok/s"
TIMES = ("Time", "Time 1", "Time 2", "Time 3")
"""What Grafana calls the time columns of joined tables."""


def build() -> dict[str, Any]:
    price = text_box("price", "Price per kWh", "In your currency; used by the cost panel.", "0.25")
    carbon = text_box("carbon", "gCO2e per kWh", "Carbon intensity of your supply; used by the carbon panel.", "400")
    return build_board(
        FLEET,
        "Power, energy, cost and tokens per joule over all hosts that energyopt measures.",
        [
            Row("Now and in this range", 5, _headline()),
            Row("Power against what is allowed", 6, allowance()),
            Row("Power and efficiency over time", 9, _over_time()),
            Row("Who uses it, and how well", 9, _who()),
            Row("Can these numbers be trusted?", 7, _trust()),
        ],
        [*common_variables(), budget_variable(), price, carbon],
        since="now-6h",
        refresh="30s",
    )


def _headline() -> tuple[tuple[int, dashboard.Panel], ...]:
    joules = f"sum({energy(ALL, '$__range')})"
    efficiency = Frame(
        "Tokens per joule",
        "Output tokens over the joules of every host that measures, idle time included. "
        "Hosts without a sensor count on neither side.",
        TOKENS_PER_JOULE,
        "Needs an engine with traffic and an energy sensor in one process.",
        decimals=3,
    )
    idle = Frame(
        "Idle share",
        "Share of attributed energy spent while no request ran: what fewer hosts, lower clocks or sleep could save.",
        units.PercentUnit,
        NO_SPLIT,
        steps=((None, "green"), (0.3, "yellow"), (0.6, "red")),
    )
    text = "Sum over all GPU and CPU sensors: the rate of their energy counters, so short peaks count too."
    now = Frame("Power now", text, units.Watt, NO_ENERGY)
    used = Frame("Energy in range", "Energy of all sensors over the chosen time range.", units.WattHour, NO_ENERGY)
    cost = Frame("Cost in range", "Energy in range times the price above.", "none", NO_ENERGY, decimals=2)
    carbon = Frame("Carbon in range", "Energy in range times the carbon intensity above.", units.Gram, NO_ENERGY)
    panels = (
        stat_panel(now, query(f"sum({power(ALL)})")),
        stat_panel(used, query(f"{joules} / {WATT_HOUR}", instant=True)),
        stat_panel(efficiency, query(tokens_per_joule(ALL))),
        stat_panel(idle, query(idle_share(ALL))),
        stat_panel(cost, query(f"{joules} / {KILOWATT_HOUR} * $price", instant=True)),
        stat_panel(carbon, query(f"{joules} / {KILOWATT_HOUR} * $carbon", instant=True)),
    )
    return tuple((4, made) for made in panels)


def _over_time() -> tuple[tuple[int, dashboard.Panel], ...]:
    return (
        (
            9,
            time_panel(
                Frame("Power by host", "Watts of all sensors of a host, stacked.", units.Watt, NO_ENERGY, low=0),
                [query(f"sum by (instance) ({power(ALL)})", "{{instance}}")],
                stacked=True,
            ),
        ),
        (
            9,
            time_panel(
                Frame(
                    "Tokens per joule by model",
                    "Output tokens over the energy attributed to the model's process. Higher is better.",
                    TOKENS_PER_JOULE,
                    NO_SPLIT,
                    low=0,
                ),
                [query(model_tokens_per_joule(ALL, "sum by (model)"), "{{model}}")],
            ),
        ),
        (
            6,
            time_panel(
                Frame("Energy per day", "Energy of the 24 hours before each bar.", units.WattHour, NO_ENERGY, low=0),
                [query(f"sum({energy(ALL, '1d')}) / {WATT_HOUR}", "energy")],
                bars=True,
                interval="1d",
                time_from="14d",
            ),
        ),
    )


def _who() -> tuple[tuple[int, dashboard.Panel], ...]:
    host = "sum by (instance)"
    columns = {"instance": "Host", "Value #A": "Power", "Value #B": "Output", "Value #C": "Efficiency"}
    frame = Frame(
        "Hosts",
        "Every host with its power, output and efficiency, least efficient first.",
        "short",
        NO_ENERGY,
        overrides=(
            ("Power", {"unit": units.Watt}),
            ("Output", {"unit": TOKENS_PER_SECOND}),
            ("Efficiency", {"unit": TOKENS_PER_JOULE, "decimals": 3}),
        ),
    )
    efficiency = ratio(f"{host} ({output_rate(ALL)})", f"{host} ({power(ALL)})")
    targets = [
        query(f"{host} ({power(ALL)})", instant=True, table=True),
        query(f"{host} ({output_rate(ALL)})", instant=True, table=True),
        query(f"sort({efficiency})", instant=True, table=True),
    ]
    worst = Frame(
        "Ten most wasteful hosts",
        "Watts spent while no request ran.",
        units.Watt,
        NO_SPLIT,
        low=0,
    )
    idle = ALL.rate(ATTRIBUTED, 'phase="idle"')
    return (
        (
            14,
            table_panel(frame, targets, join="instance", names=columns, hidden=TIMES),
        ),
        (10, bar_panel(worst, query(f"sort_desc(topk(10, {host} ({idle})))", "{{instance}}", instant=True))),
    )


def _trust() -> tuple[tuple[int, dashboard.Panel], ...]:
    sensors = either(ALL.gauge(GPU.up), ALL.gauge(CPU.up))
    ages = either(ALL.gauge(GPU.age), ALL.gauge(CPU.age))
    answer = Frame(
        "Sensors that answer",
        "Energy sensors whose last reading succeeded.",
        "short",
        NO_ENERGY,
        steps=((None, "red"), (1, "green")),
    )
    fail = Frame(
        "Sensors that fail",
        "Sensors that are configured but do not answer; their energy is missing from every sum here.",
        "short",
        NO_ENERGY,
        steps=((None, "green"), (1, "red")),
    )
    oldest = Frame(
        "Oldest sample",
        "The largest age of a sensor's newest sample.",
        units.Seconds,
        NO_ENERGY,
        steps=((None, "green"), (5, "yellow"), (30, "red")),
    )
    origin = Frame(
        "Power by origin of the number",
        "`counter`: a hardware energy counter. `integrated`: summed from power readings. "
        "`estimated`: from a model of the device, not measured. `simulated`: no hardware at all.",
        units.Watt,
        NO_ENERGY,
        low=0,
    )
    engines = Frame("Engines", "Engines that report.", "short", NO_ENGINE)
    return (
        (4, stat_panel(answer, query(f"sum({sensors})"))),
        (4, stat_panel(fail, query(f"count({sensors}) - sum({sensors})"))),
        (4, stat_panel(oldest, query(f"max({ages})"))),
        (4, stat_panel(engines, query(f"count({ALL.rate(STEPS)})"))),
        (8, time_panel(origin, [query(f"sum by (source) ({power(ALL)})", "{{source}}")], stacked=True)),
    )

"""Power against what it may be: a budget for all, the limits of each GPU, and who is held down."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard, units

from telemetry.catalog import DEVICE, GPU

from ..board import text_box
from ..energy import power
from ..panels import Frame, query, stat_panel, time_panel
from ..promql import ENGINE, ratio
from .gpu_status import DASHED, NO_STATUS
from .scope import ALL, NO_ENERGY

BY_GPU = f"{ENGINE}, gpu_uuid"
HEAT = 'reason=~"thermal_sw|thermal_hw|hw_slowdown|power_brake"'
FULL = ((None, "green"), (0.9, "yellow"), (1.0, "red"))


def budget_variable() -> dashboard.VariableModel:
    """The watts that the chosen hosts may draw together."""
    return text_box("budget", "Power budget (W)", "Watts that the chosen hosts may draw together.", "10000")


def allowance() -> tuple[tuple[int, dashboard.Panel], ...]:
    """Shares of budget and limits, counts of GPUs with a cap and with too little cooling."""
    drawn = f"sum({power(ALL)})"
    requested, default, enforced = (
        _by_gpu("max", ALL.gauge(DEVICE.limit, f'kind="{kind}"')) for kind in ("requested", "default", "enforced")
    )
    capped = f"{requested} < bool {default}"
    own = _by_gpu("sum", ALL.rate(GPU.energy))
    against = ratio(f"sum({own} and on ({BY_GPU}) {enforced})", f"sum({enforced})")
    hot = _by_gpu("max", ALL.gauge(DEVICE.throttled, HEAT))
    budget = Frame(
        "Share of the budget", "Power of all sensors over the budget above.", units.PercentUnit, NO_ENERGY, steps=FULL
    )
    limit = Frame(
        "Share of the GPU limits",
        "Power of the GPUs over the sum of their enforced limits: near 1, caps decide how fast they are.",
        units.PercentUnit,
        NO_STATUS,
    )
    caps = Frame("GPUs with a cap", "GPUs whose requested limit is below the one they came with.", "short", NO_STATUS)
    cooling = Frame(
        "GPUs held down by heat",
        "GPUs that run slower now because of heat or a power brake, which no cap of ours causes.",
        "short",
        NO_STATUS,
        steps=((None, "green"), (1, "red")),
    )
    over_time = Frame(
        "Power against the budget",
        "Power of all sensors; dashed, the budget above.",
        units.Watt,
        NO_ENERGY,
        low=0,
        overrides=(("budget", {**DASHED, "color": {"mode": "fixed", "fixedColor": "red"}}),),
    )
    return (
        (4, stat_panel(budget, query(f"{drawn} / vector($budget)"))),
        (4, stat_panel(limit, query(against))),
        (4, stat_panel(caps, query(f"sum({capped})"))),
        (4, stat_panel(cooling, query(f"sum({hot})"))),
        (8, time_panel(over_time, [query(drawn, "power"), query("vector($budget)", "budget")])),
    )


def _by_gpu(over: str, expression: str) -> str:
    return f"{over} by ({BY_GPU}) ({expression})"

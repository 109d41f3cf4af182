"""What holds power down on purpose: caps and ceilings by lease, and the governor that moves them."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard, units

from telemetry import control_catalog as control

from ..panels import Frame, query, state_panel, time_panel
from .scope import ALL

NO_GOVERNOR = "No governor runs here: `energyopt serve --power-cap auto --slo …` starts one."
NO_LEASE = "No process here holds a cap or a clock ceiling."
FOREIGN = (("1", "changed by another", "orange"), ("0", "as set", "green"))


def governor() -> tuple[tuple[int, dashboard.Panel], ...]:
    """Panels of the governor and of what is held."""
    room = Frame(
        "Room under the tightest objective",
        "Share of the target that is left; below 0 the objective is violated and the governor goes to the top at once.",
        units.PercentUnit,
        NO_GOVERNOR,
    )
    why = Frame(
        "Governor decisions",
        "Decisions a second by reason. `room` and `floor` save energy, `violated`, `burst` and `tight` give it back.",
        "cps",
        NO_GOVERNOR,
        low=0,
    )
    refused = Frame("Refused changes", "Changes that a device or the power helper refused.", "cps", NO_GOVERNOR, low=0)
    decisions = f"sum by (reason) ({ALL.rate(control.DECISIONS)})"
    return (
        (8, time_panel(room, [query(ALL.gauge(control.MARGIN), "{{instance}}")])),
        (10, time_panel(why, [query(decisions, "{{reason}}")], stacked=True)),
        (6, time_panel(refused, [query(f"sum by (instance) ({ALL.rate(control.REFUSED)})", "{{instance}}")])),
    )


def leases() -> tuple[tuple[int, dashboard.Panel], ...]:
    """Panels of single devices under a lease."""
    chosen = 'gpu_uuid=~"$gpu"'
    cap = Frame("Caps held", "Power caps that a process holds by a lease.", units.Watt, NO_LEASE, low=0)
    ceiling = Frame(
        "Clock ceilings held", "Highest SM clocks that a process allows by a lease.", units.Hertz, NO_LEASE, low=0
    )
    left = Frame(
        "Lease left",
        "Time until what was found is put back if the holder says nothing more. 0: the lease is lost.",
        units.Seconds,
        NO_LEASE,
        low=0,
    )
    foreign = Frame(
        "Limits as set",
        "Whether somebody else has changed the limit since; such a limit is left alone.",
        "short",
        NO_LEASE,
        steps=((None, "green"), (1, "orange")),
        mappings=FOREIGN,
    )
    return (
        (6, time_panel(cap, [query(ALL.gauge(control.POWER_CAP, chosen), "{{gpu_uuid}}")])),
        (6, time_panel(ceiling, [query(ALL.gauge(control.CLOCK_CEILING, chosen), "{{gpu_uuid}}")])),
        (6, time_panel(left, [query(ALL.gauge(control.LEASE_REMAINING, chosen), "{{gpu_uuid}}")])),
        (6, state_panel(foreign, query(ALL.gauge(control.LIMIT_FOREIGN, chosen), "{{gpu_uuid}}"))),
    )

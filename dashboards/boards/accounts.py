"""Whose energy it is: tenants, cache tiers, and how well the model tells a step's parts apart."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard, units

from telemetry.catalog import ACCOUNT

from ..panels import Frame, query, time_panel
from ..promql import ratio
from .scope import ALL, NO_REQUESTS, NO_SPLIT

CHOSEN = 'model=~"$model"'


def accounts() -> tuple[tuple[int, dashboard.Panel], ...]:
    """Panels of the energy account."""
    tenants = Frame(
        "Power by tenant",
        "Attributed energy per second by the tenant whose API key made the requests, `anonymous` without a key. "
        "`nobody` is what no tenant answers for: idle time where it is kept apart, and overhead.",
        units.Watt,
        NO_SPLIT,
        low=0,
    )
    tiers = Frame(
        "Request power by token origin",
        "Energy of requests per second: tokens that were computed, and tokens taken from each cache tier.",
        units.Watt,
        NO_SPLIT,
        low=0,
    )
    request = Frame(
        "Joules per request by tenant",
        "Mean energy of the requests that finished.",
        "suffix:J/req",
        NO_REQUESTS,
        low=0,
    )
    fit = Frame(
        "Error of the cost model",
        "Mean error of the step times that the model behind the split of a step predicts. Until it can be trusted, "
        "tokens are counted instead, and the label `method` says so.",
        units.PercentUnit,
        "The cost model has not seen enough steps yet.",
        low=0,
    )
    mean = ratio(
        f"sum by (tenant) ({ALL.rate(ACCOUNT.requests, CHOSEN, series='_sum')})",
        f"sum by (tenant) ({ALL.rate(ACCOUNT.requests, CHOSEN, series='_count')})",
    )
    return (
        (
            6,
            time_panel(
                tenants, [query(_sum("tenant", ALL.rate(ACCOUNT.attributed, CHOSEN)), "{{tenant}}")], stacked=True
            ),
        ),
        (6, time_panel(tiers, [query(_sum("tier", ALL.rate(ACCOUNT.tiers, CHOSEN)), "{{tier}}")], stacked=True)),
        (6, time_panel(request, [query(mean, "{{tenant}}")])),
        (6, time_panel(fit, [query(ALL.gauge(ACCOUNT.fit_error, CHOSEN), "{{instance}} {{model}}")])),
    )


def _sum(label: str, expression: str) -> str:
    return f"sum by ({label}) ({expression})"

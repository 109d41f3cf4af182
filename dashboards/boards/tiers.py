"""KV tiers below the device pool: what moves, how fast, what waits for it and what went wrong."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard

from telemetry import catalog, tier_catalog
from telemetry.metric import Metric

from ..panels import Frame, query, time_panel
from ..promql import ratio
from .scope import ALL, NO_ENGINE

CHOSEN = 'model=~"$model"'
BYTES_PER_SECOND = "Bps"
NO_TIER = "No tier lies below the device pool: `energyopt serve --kv-host-gib-per-host` adds one."


def tiers() -> tuple[tuple[int, dashboard.Panel], ...]:
    """Panels of the tiers."""
    moved = Frame(
        "Bytes from and to tiers",
        "Blocks copied up for a hit (`loaded`) and down to be kept (`stored`), by tier.",
        BYTES_PER_SECOND,
        NO_TIER,
        low=0,
    )
    speed = Frame(
        "Speed of tiers",
        "Bytes loaded over the time that loading took, copies in parallel counted apart.",
        BYTES_PER_SECOND,
        NO_TIER,
        low=0,
    )
    waiting = Frame(
        "Waiting for a tier",
        "Requests whose blocks are still on their way up; others run meanwhile.",
        "short",
        NO_ENGINE,
        low=0,
    )
    failed = Frame(
        "Blocks that a tier did not give",
        "Loads and stores that failed, by reason. Each was computed instead: slower, never a different text.",
        "cps",
        "No tier has failed.",
        low=0,
    )
    copies = [
        query(_by_tier(tier_catalog.LOAD_BYTES), "loaded {{tier}}"),
        query(_by_tier(tier_catalog.STORE_BYTES), "stored {{tier}}"),
    ]
    rate = ratio(_by_tier(tier_catalog.LOAD_BYTES), _by_tier(tier_catalog.LOAD_SECONDS))
    failures = f"sum by (tier, reason) ({ALL.rate(tier_catalog.FAILURES, CHOSEN)})"
    return (
        (7, time_panel(moved, copies)),
        (7, time_panel(speed, [query(rate, "{{tier}}")])),
        (5, time_panel(waiting, [query(f"sum({ALL.gauge(catalog.KV_LOADING, CHOSEN)})", "requests")])),
        (5, time_panel(failed, [query(failures, "{{tier}}: {{reason}}")])),
    )


def _by_tier(metric: Metric) -> str:
    return f"sum by (tier) ({ALL.rate(metric, CHOSEN)})"

"""Families of power control: what a serving process holds, and what its governor decides."""

from __future__ import annotations

from .metric import Metric, own

POWER_CAP = own("gpu_power_cap_watts", "gauge", "Power cap that this process holds by a lease.", "gpu_uuid")
CLOCK_CEILING = own(
    "gpu_sm_clock_ceiling_hertz", "gauge", "Ceiling of the SM clock that this process holds by a lease.", "gpu_uuid"
)
LEASE_REMAINING = own(
    "gpu_power_lease_remaining_seconds",
    "gauge",
    "Time until what was found is put back if this process says nothing more; 0 while the lease is lost.",
    "gpu_uuid",
)
LIMIT_FOREIGN = own(
    "gpu_power_limit_foreign", "gauge", "1 if someone else has changed the limit since it was set.", "gpu_uuid"
)
DECISIONS = own("governor_decisions_total", "counter", "Decisions of the SLO governor by reason.", "reason")
REFUSED = own("governor_refused_changes_total", "counter", "Changes that a device or the power helper refused.")
MARGIN = own(
    "governor_slo_margin_ratio",
    "gauge",
    "Room left under the tightest objective as a share of its target; negative is a violation.",
)

CONTROL: tuple[Metric, ...] = (
    POWER_CAP,
    CLOCK_CEILING,
    LEASE_REMAINING,
    LIMIT_FOREIGN,
    DECISIONS,
    REFUSED,
    MARGIN,
)

"""Joules of a prefill pool and of a decode pool apart, each over the whole window: idle time is the pool's own.

Two ways to know: the user names the prefill pool's devices, and readings are sorted by device; or the server's own
account, counted at both edges of the window, says which engine has which role.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from energyopt.core.results import EnergyReading, Result

Account = Mapping[tuple[str, str], float]
"""Joules by role of the engine ("" without roles) and phase, as the server accounts for them."""


class PoolEnergy(Result):
    """Joules of the two pools. ``basis``: readings of named devices, or the account that the server keeps."""

    prefill: float
    decode: float
    basis: Literal["devices", "account"]


def pool_energy(
    readings: Sequence[EnergyReading], prefill_devices: Collection[str], account: Account | None
) -> PoolEnergy | None:
    """None where no device is named and the server tells of no roles; a named device without a reading is unknown."""
    if prefill_devices:
        joules = {reading.device: reading.joules for reading in readings}
        if not set(prefill_devices) <= joules.keys():
            return None
        prefill = sum(joules[device] for device in set(prefill_devices))
        return PoolEnergy(prefill=prefill, decode=sum(joules.values()) - prefill, basis="devices")
    by_role = {role: 0.0 for role, _ in account or {} if role}
    for (role, _), joules_of in (account or {}).items():
        if role:
            by_role[role] += joules_of
    if not by_role.keys() >= {"prefill", "decode"}:
        return None
    return PoolEnergy(prefill=by_role["prefill"], decode=by_role["decode"], basis="account")


def phase_energy(account: Account | None) -> dict[str, float] | None:
    """Joules by phase over all engines; None without an account."""
    if not account:
        return None
    phases: dict[str, float] = {}
    for (_, phase), joules in account.items():
        phases[phase] = phases.get(phase, 0.0) + joules
    return phases

"""Joules of a prefill pool and of a decode pool apart, each over the whole window: idle time is the pool's own.

Two ways to know: the user names the prefill pool's devices, and readings are sorted by device; or the server's own
account, counted at both edges of the window, says which engine has which role. An account tells neither source nor
error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from energyopt.core.results import EnergyReading, Result, Source, total_energy

from .page import is_part

Account = Mapping[tuple[str, str], float]
"""Joules by role of the engine ("" without roles) and phase, as the server accounts for them."""


class PoolJoules(Result):
    """Joules of one pool. ``error`` is the half-width of their interval; None and no ``sources``: nobody told."""

    joules: float
    error: float | None = Field(None, ge=0)
    sources: tuple[Source, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        """Runs that were stored before errors were kept have the joules alone."""
        return {"joules": value} if isinstance(value, int | float) else value

    @classmethod
    def of(cls, readings: Sequence[EnergyReading]) -> PoolJoules | None:
        """The sum of a pool's readings; None without any."""
        total = total_energy(readings)
        return None if total is None else cls(joules=total.joules, error=total.error, sources=total.sources)


class PoolEnergy(Result):
    """Joules of the two pools. ``basis``: readings of named devices, or the account that the server keeps."""

    prefill: PoolJoules
    decode: PoolJoules
    basis: Literal["devices", "account"]


def pool_energy(
    readings: Sequence[EnergyReading], prefill_devices: Collection[str], account: Account | None
) -> PoolEnergy | None:
    """None where no device is named and the server tells of no roles; ``unread`` says why named ones give nothing."""
    if prefill_devices:
        if unread(readings, prefill_devices) is not None:
            return None
        prefill = PoolJoules.of([one for one in readings if _named(one, prefill_devices)])
        decode = PoolJoules.of([one for one in readings if not _named(one, prefill_devices)])
        if prefill is None or decode is None:
            return None
        return PoolEnergy(prefill=prefill, decode=decode, basis="devices")
    by_role = {role: 0.0 for role, _ in account or {} if role}
    for (role, _), joules_of in (account or {}).items():
        if role:
            by_role[role] += joules_of
    if not by_role.keys() >= {"prefill", "decode"}:
        return None
    told = PoolJoules(joules=by_role["prefill"]), PoolJoules(joules=by_role["decode"])
    return PoolEnergy(prefill=told[0], decode=told[1], basis="account")


def unread(readings: Sequence[EnergyReading], prefill_devices: Collection[str]) -> str | None:
    """Why readings of named devices are not those of two pools; None where they are."""
    measured = ", ".join(one.device for one in readings) or "nothing"
    lost = [name for name in prefill_devices if not any(is_part(one.device, name) for one in readings)]
    if lost:
        return f"pools: {', '.join(lost)} has no reading; measured were {measured}"
    if prefill_devices and all(_named(one, prefill_devices) for one in readings):
        return f"pools: every device measured ({measured}) was named for prefill, and none is left for decode"
    return None


def _named(reading: EnergyReading, names: Collection[str]) -> bool:
    return any(is_part(reading.device, name) for name in names)


def phase_energy(account: Account | None) -> dict[str, float] | None:
    """Joules by phase over all engines; None without an account."""
    if not account:
        return None
    phases: dict[str, float] = {}
    for (_, phase), joules in account.items():
        phases[phase] = phases.get(phase, 0.0) + joules
    return phases

"""Matches a prefill pool to a decode pool, and prices the fleet in watts. Pure arithmetic.

Sequences per second: ``X = min(0.9 N_p r_p, 0.92 N_d r_d)``: pipeline bubbles and unfilled decode slots take the rest
(both factors from aiconfigurator). Fleet power is the sum over pools of ``N G (P_idle + u (P_busy - P_idle))`` with
the busy share ``u = X / (N r)``, plus idle devices of the budget at ``P_idle``: a phase weighs by the devices it
holds, not by the share it has in one request's time line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PREFILL_YIELD = 0.9
DECODE_YIELD = 0.92


@dataclass(frozen=True, slots=True)
class PoolRate:
    """One engine of a pool: requests per second at full load, devices, and watts per device busy and idle."""

    rate: float
    devices: int
    busy_watts: float
    idle_watts: float

    def watts(self, replicas: int, flow: float) -> float:
        """Power of ``replicas`` engines that carry ``flow`` requests per second together."""
        busy = min(1.0, flow / (replicas * self.rate)) if replicas else 0.0
        return replicas * self.devices * (self.idle_watts + busy * (self.busy_watts - self.idle_watts))


@dataclass(frozen=True, slots=True)
class Match:
    """Replicas of both pools, the requests per second they carry, and the watts of the whole budget."""

    prefill: int
    decode: int
    flow: float
    watts: float


def match_pools(prefill: PoolRate, decode: PoolRate, devices: int) -> Match | None:
    """The pair of replica counts within ``devices`` that carries most; of equals the one with fewest devices.

    None if not one engine of each fits. Devices left over idle at the decode pool's idle draw.
    """
    best: tuple[float, int, Match] | None = None
    for count in range(1, (devices - decode.devices) // prefill.devices + 1):
        for other in _decode_counts(prefill, decode, count, devices):
            flow = flow_of(prefill, count, decode, other)
            used = count * prefill.devices + other * decode.devices
            if best is None or (flow, -used) > best[:2]:
                watts = prefill.watts(count, flow) + decode.watts(other, flow)
                watts += (devices - used) * decode.idle_watts
                best = (flow, -used, Match(count, other, flow, watts))
    return None if best is None else best[2]


def flow_of(prefill: PoolRate, prefills: int, decode: PoolRate, decodes: int) -> float:
    """Requests per second that so many engines of each pool carry together."""
    return min(PREFILL_YIELD * prefills * prefill.rate, DECODE_YIELD * decodes * decode.rate)


def _decode_counts(prefill: PoolRate, decode: PoolRate, count: int, devices: int) -> Iterable[int]:
    """The counts around the closed form ``N_d = N_p * 0.9 r_p / (0.92 r_d)``, and the most that fits."""
    room = (devices - count * prefill.devices) // decode.devices
    wanted = count * PREFILL_YIELD * prefill.rate / (DECODE_YIELD * decode.rate)
    return {min(max(1, int(wanted)), room), min(int(wanted) + 1, room)} - {0}

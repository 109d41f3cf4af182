"""Who is admitted next: policies that rank waiting requests, and nothing else."""

from __future__ import annotations

from typing import Protocol

from energyopt.core.units import Seconds

from .request import Request, Status


class AdmissionPolicy(Protocol):
    """Ranks a waiting request when it enters the queue; the lowest rank is admitted first, ties in order of entry."""

    def rank(self, request: Request) -> tuple[float, ...]: ...


class FirstComeFirstServed:
    """Preempted requests first, then by arrival: nobody overtakes, so nobody starves."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (0.0 if request.status is Status.PREEMPTED else 1.0, request.arrival)


WORTH = Seconds(10.0)
"""Seconds of waiting that one step of priority is worth."""


class PriorityFirst:
    """Preempted requests first, then by arrival, as if a lower ``priority`` had arrived so much earlier.

    So the most important goes first, and nobody starves: who has waited for long enough is as important as any.
    """

    def rank(self, request: Request) -> tuple[float, ...]:
        preempted = request.status is Status.PREEMPTED
        return (0.0 if preempted else 1.0, request.arrival + request.params.priority * WORTH)

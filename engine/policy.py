"""Who is admitted next: policies that rank waiting requests, and nothing else."""

from __future__ import annotations

from typing import Protocol

from .request import Request, Status


class AdmissionPolicy(Protocol):
    """Ranks a waiting request when it enters the queue; the lowest rank is admitted first, ties in order of entry."""

    def rank(self, request: Request) -> tuple[float, ...]: ...


class FirstComeFirstServed:
    """Preempted requests first, then by arrival: nobody overtakes, so nobody starves."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (0.0 if request.status is Status.PREEMPTED else 1.0, request.arrival)


class PriorityFirst:
    """A lower ``priority`` first; among equals, as ``FirstComeFirstServed``. Who is least important may starve."""

    def __init__(self) -> None:
        self._among_equals = FirstComeFirstServed()

    def rank(self, request: Request) -> tuple[float, ...]:
        return (float(request.params.priority), *self._among_equals.rank(request))

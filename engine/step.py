"""The step loop: schedule, run, settle, emit. It owns no thread; the front or the simulator drives it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from energyopt.core.errors import EngineError
from energyopt.core.records import FinishReason, RequestRecord, StepRecord
from energyopt.core.units import Seconds

from .batch import Batch, Runner
from .flights import as_pipeline
from .request import Request
from .scheduler import Scheduler
from .settled import Settled

Emit = Callable[[Settled, StepRecord], None]


class StepLoop:
    """Turns requests of a scheduler into tokens, batch by batch, and hands each outcome to ``emit``.

    As many batches are under way as the scheduler was told the runner's pipeline takes.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, emit: Emit) -> None:
        self._scheduler = scheduler
        self._devices = runner.devices
        self._pipeline = as_pipeline(runner)
        self._emit = emit
        self._flying: deque[Batch] = deque()

    def step(self) -> bool:
        """One step; False if there was nothing to do. Errors of the runner and of ``emit`` pass through."""
        while len(self._flying) < self._scheduler.flights.depth and (batch := self._scheduler.schedule()) is not None:
            self._pipeline.start(batch)
            self._flying.append(batch)
        if not self._flying:
            return False
        result, batch = self._pipeline.finish(), self._flying.popleft()
        if batch.since is not None:
            result = replace(result, start=batch.since)
        settled = self._scheduler.settle(batch, result)
        self._emit(settled, StepRecord(result.start, result.end, self._devices, settled.shares))
        return True


def request_record(request: Request, end: Seconds) -> RequestRecord:
    """The record of a request that has ended. Raises EngineError for one that has not."""
    reason: FinishReason | None = request.finish_reason
    if reason is None:
        raise EngineError(f"Request {request.id!r} has not ended, so there is no record of it.")
    return RequestRecord(
        request_id=request.id,
        arrival=request.arrival,
        end=end,
        prompt_tokens=len(request.prompt),
        cached_tokens=request.cached_tokens,
        output_tokens=len(request.output),
        finish_reason=reason,
        token_times=tuple(request.token_times),
        session=request.session,
        cached_by_tier=dict(request.cached_by_tier),
        scheduled=request.scheduled,
    )

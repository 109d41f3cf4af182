"""A running OpenAI-compatible server as the load sees it, and the measurement of a window over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.errors import EngineError, TrialTimeoutError
from energyopt.core.records import FinishReason
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.workload import Workload

from ..ports import Meter, ProgressSink
from ..replay.ask import Ask, ReplayClient, Reply
from ..replay.http import Endpoint, HttpClient
from ..replay.measure import Recording
from ..replay.prompts import count_asked
from ..window import report
from ..worker import drive

MeterOf = Callable[[Deployment], AbstractContextManager[Meter]]
"""Opens the meter of a deployment's devices; it samples while the block lasts, on the clock of the evaluator."""


class ExactClient:
    """A ``ReplayClient`` for which an answer of another length than asked for is a failed one: it did other work."""

    def __init__(self, client: ReplayClient) -> None:
        self._client = client

    async def send(self, ask: Ask) -> Reply:
        """Raises what the client raises."""
        reply = await self._client.send(ask)
        if reply.error is not None or reply.record.failed:
            return reply
        if not reply.counted:
            return _failed(reply, "The server does not count its tokens (no usage).")
        told = reply.record.output_tokens
        if told != ask.output_tokens:
            return _failed(reply, f"The server answered with {told} tokens where {ask.output_tokens} were asked for.")
        return reply

    def abort(self, request_id: str) -> None:
        self._client.abort(request_id)


async def measure_server(
    endpoint: Endpoint,
    workload: Workload,
    plan: MeasurePlan,
    slos: Sequence[Slo],
    metered: AbstractContextManager[Meter],
    clock: Clock,
    progress: ProgressSink,
    watch: Callable[[], None] = lambda: None,
) -> RunResult:
    """Probe the server, load it, measure the window. ``watch`` is called often and raises when its engine is gone.

    Raises LaunchError if it does not answer rightly at first, TrialTimeoutError after the plan's time.
    """
    with metered as meter:
        async with HttpClient(endpoint, clock) as client:
            try:
                async with asyncio.timeout(plan.timeout):
                    recording = await _watched(drive(ExactClient(client), workload, plan, slos, progress, clock), watch)
            except TimeoutError as error:
                raise TrialTimeoutError(f"The trial did not finish within {plan.timeout:g} s.") from error
        window, cut = recording.window, recording.cut_requests
        result = report(window, recording.records, (), meter, slos, cut_requests=cut)
    asked = count_asked(window, recording.replies)
    return result.model_copy(update={"prompt_tokens": asked.tokens, "cached_tokens": asked.cached})


async def _watched(work: Coroutine[None, None, Recording], watch: Callable[[], None]) -> Recording:
    """The result of ``work``, unless ``watch`` raises first; nothing is left running."""
    running = asyncio.ensure_future(work)
    try:
        while not running.done():
            await asyncio.wait([running], timeout=0.2)
            watch()
        return running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _failed(reply: Reply, words: str) -> Reply:
    return replace(reply, record=replace(reply.record, finish_reason=FinishReason.ERROR), error=EngineError(words))

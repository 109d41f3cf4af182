"""A running OpenAI-compatible server as the load sees it, and the measurement of a window over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.errors import EngineError, TrialTimeoutError
from energyopt.core.records import FinishReason, RequestRecord, cached_total
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Tokens
from energyopt.core.workload import Workload

from ..counting import Window
from ..ports import Meter, ProgressSink
from ..replay.ask import Ask, ReplayClient, Reply
from ..replay.http import Endpoint, HttpClient
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
                    window, records = await _watched(
                        drive(ExactClient(client), workload, plan, slos, progress, clock), watch
                    )
            except TimeoutError as error:
                raise TrialTimeoutError(f"The trial did not finish within {plan.timeout:g} s.") from error
        result = report(window, records, (), meter, slos)
    return result.model_copy(update=_prompts(window, records))


async def _watched(
    work: Coroutine[None, None, tuple[Window, list[RequestRecord]]], watch: Callable[[], None]
) -> tuple[Window, list[RequestRecord]]:
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


def _prompts(window: Window, records: Sequence[RequestRecord]) -> dict[str, Tokens | None]:
    """Prompt tokens as the server counted them: a prompt belongs to its first token, before which it was computed.

    A server that tells nothing of its cache leaves the hits unknown.
    """
    begun = [one for one in records if one.first_token is not None and one.first_token in window]
    cached = cached_total(begun)
    return {
        "prompt_tokens": Tokens(sum(one.prompt_tokens for one in begun)),
        "cached_tokens": None if cached is None else Tokens(cached),
    }


def _failed(reply: Reply, words: str) -> Reply:
    return replace(reply, record=replace(reply.record, finish_reason=FinishReason.ERROR), error=EngineError(words))

"""A running OpenAI-compatible server as the load sees it, and the measurement of a window over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from energyopt.core.clock import Clock
from energyopt.core.errors import EngineError, TrialTimeoutError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Tokens
from energyopt.core.workload import Workload

from ..counting import Window
from ..load import Answer, Message
from ..ports import Meter, ProgressSink
from ..replay.ask import Ask, Prompt
from ..replay.http import Endpoint, HttpClient
from ..window import report
from ..worker import drive

MeterOf = Callable[[], AbstractContextManager[Meter]]
"""Opens a meter that samples while the block lasts, on the clock of the evaluator."""


class HttpChat:
    """A ``ChatClient`` over HTTP. An answer of another length than asked for is a failed one: it did other work."""

    def __init__(self, client: HttpClient, clock: Clock) -> None:
        self._client, self._clock = client, clock

    async def ask(self, messages: Sequence[Message], *, output_tokens: int, request_id: str, session: str) -> Answer:
        told = [{"role": message["role"], "content": message["content"]} for message in messages]
        ask = Ask(request_id, session, Prompt(messages=told), output_tokens, self._clock.now())
        reply = await self._client.send(ask)
        record = reply.record
        if reply.error is None and not record.failed and reply.counted and record.output_tokens != output_tokens:
            words = f"The server answered with {record.output_tokens} tokens where {output_tokens} were asked for."
            return Answer(reply.text, _failed(record), EngineError(words))
        if reply.error is None and not record.failed and not reply.counted:
            return Answer(reply.text, _failed(record), EngineError("The server does not count its tokens (no usage)."))
        return Answer(reply.text, record, reply.error)

    def abort(self, request_id: str) -> None:
        self._client.abort(request_id)


async def measure_server(
    endpoint: Endpoint,
    workload: Workload,
    plan: MeasurePlan,
    slos: Sequence[Slo],
    meter_of: MeterOf,
    clock: Clock,
    progress: ProgressSink,
    watch: Callable[[], None] = lambda: None,
) -> RunResult:
    """Probe the server, load it, measure the window. ``watch`` is called often and raises when its engine is gone.

    Raises LaunchError if it does not answer rightly at first, TrialTimeoutError after the plan's time.
    """
    with meter_of() as meter:
        async with HttpClient(endpoint, clock) as client:
            try:
                async with asyncio.timeout(plan.timeout):
                    window, records = await _watched(
                        drive(HttpChat(client, clock), workload, plan, slos, progress, clock), watch
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


def _prompts(window: Window, records: Sequence[RequestRecord]) -> dict[str, Tokens]:
    """Prompt tokens as the server counted them: a prompt belongs to its first token, before which it was computed."""
    begun = [one for one in records if one.first_token is not None and one.first_token in window]
    return {
        "prompt_tokens": Tokens(sum(one.prompt_tokens for one in begun)),
        "cached_tokens": Tokens(sum(one.cached_tokens for one in begun)),
    }


def _failed(record: RequestRecord) -> RequestRecord:
    return replace(record, finish_reason=FinishReason.ERROR)

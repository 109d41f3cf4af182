"""Running the requests of one call: their outputs as one stream, and their end when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from energyopt.core.errors import DeadlineError, EngineDeadError, EngineError
from energyopt.core.records import FinishReason
from engine.output import Output
from engine.ports import ServingEngine
from engine.structured.ports import GuideError

from .call import Call, Job

Event = tuple[int, Output]
"""Choice index and output."""

T = TypeVar("T")


async def fan_out(engine: ServingEngine, call: Call) -> AsyncGenerator[Event]:
    """Submit every job and yield their outputs as they come. Closing the generator aborts what still runs.

    Raises what ``ServingEngine.generate`` raises, GuideError when an answer could not keep its form, EngineDeadError
    when the engine ended a request that nobody here asked to end, and EngineError when a request failed. One failure
    ends the whole call.
    """
    if len(call.jobs) == 1:
        stream = _checked(engine, call, call.jobs[0])
        try:
            async for output in stream:
                yield 0, output
        finally:
            await stream.aclose()
        return
    queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(engine, call, index, queue)) for index in range(len(call.jobs))]
    try:
        running = len(pumps)
        while running:
            event = await queue.get()
            if event is None:
                running -= 1
            elif isinstance(event, Exception):
                raise event
            else:
                yield event
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(engine: ServingEngine, call: Call, index: int, queue: asyncio.Queue[Event | Exception | None]) -> None:
    stream = _checked(engine, call, call.jobs[index])
    try:
        async for output in stream:
            queue.put_nowait((index, output))
        queue.put_nowait(None)
    except Exception as error:  # noqa: BLE001  handed whole to the consumer, which raises it
        queue.put_nowait(error)
    finally:
        await stream.aclose()


async def _checked(engine: ServingEngine, call: Call, job: Job) -> AsyncGenerator[Output]:
    """Outputs of one job; one that ended without a reply raises instead.

    What came before a deadline is a reply, which says that it is not complete.
    """
    outputs: AsyncIterator[Output] = engine.generate(
        job.prompt, job.params, request_id=job.request_id, session=call.session
    )
    ended = begun = False
    try:
        async for output in outputs:
            begun = begun or bool(output.token_ids)
            ended = output.finish_reason is not None
            if output.finish_reason is FinishReason.ABORT:
                raise EngineDeadError("The server ended this request before it was complete; it can be sent again.")
            if output.failure is not None:
                field = job.params.guide.field if job.params.guide is not None else None
                raise GuideError(f"The answer could not be kept in the form of {field}: {output.failure}.", param=field)
            if output.finish_reason is FinishReason.ERROR:
                raise EngineError("The engine failed while it computed this request.")
            if output.finish_reason is FinishReason.DEADLINE and not begun:
                limit = job.params.timeout
                raise DeadlineError(f"The request had no token within its time limit of {limit:g} s.")
            yield output
        if not ended:
            raise EngineError("The engine ended this request without a result.")
    finally:
        if isinstance(outputs, AsyncGenerator):
            await outputs.aclose()
        if not ended:
            engine.abort(job.request_id)


async def until_disconnect(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """The result of ``work``, or ClientDisconnect with ``work`` cancelled as soon as the client has gone.

    The request body must have been read: ``receive`` then has nothing else left to say.
    """
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

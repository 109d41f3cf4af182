"""One replay: warm up under load, keep a window of steady state, stop, and hand over what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from energyopt.core.clock import Clock
from energyopt.core.errors import EngineError
from energyopt.core.records import RequestRecord
from energyopt.core.units import Seconds

from ..counting import Window
from ..ports import Progress, ProgressSink
from .ask import Ask, Reply
from .lag import ClientLoad, LagMeter
from .loads import Load
from .player import Stage

_TICK = Seconds(0.25)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """``warmup`` seconds of load before the window; ``window`` None measures from the first request to the last.

    The load goes on for ``bracket`` seconds after the window, so that meters have samples on both sides of its end.
    ``timeout`` bounds everything.
    """

    warmup: Seconds = Seconds(2.0)  # noqa: RUF009  # a float by another name
    window: Seconds | None = Seconds(30.0)  # noqa: RUF009
    bracket: Seconds = Seconds(1.5)  # noqa: RUF009
    timeout: Seconds = Seconds(7200.0)  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class Recording:
    """What a replay recorded. ``replies`` are all that ended, before and after the window too.

    ``cut`` are requests that were refused because their conversation had outgrown the context; each ended a session.
    """

    window: Window
    replies: Sequence[Reply]
    asks: Mapping[str, Ask]
    client: ClientLoad
    errors: Mapping[str, int]
    cut: Sequence[Reply]
    skipped: float

    @property
    def records(self) -> list[RequestRecord]:
        """Of every reply."""
        return [reply.record for reply in self.replies]

    @property
    def cut_requests(self) -> int:
        """Those of the window."""
        return sum(reply.record.end in self.window for reply in self.cut)


async def replay(
    load: Load,
    stage: Stage,
    plan: ReplayPlan,
    clock: Clock,
    progress: ProgressSink,
    at_edge: Callable[[], None] = lambda: None,
    hopeless: Callable[[Window, Sequence[Reply]], bool] = lambda part, replies: False,
) -> Recording:
    """Run the load. ``at_edge`` is called on a thread at both edges of the window and may block; ``hopeless`` says of
    the part measured so far that no rest of the window is worth measuring.

    Raises EngineDeadError, and EngineError if nothing was answered or the time is over.
    """
    meter = LagMeter(clock)
    clock.now()
    watching = asyncio.create_task(meter.run())
    if plan.window is None:
        await asyncio.to_thread(at_edge)
    running = asyncio.create_task(load.run(stage))
    try:
        async with asyncio.timeout(plan.timeout):
            window = await _window(running, plan, clock, stage, progress, at_edge, hopeless)
            await asyncio.sleep(plan.bracket)
            await stage.dispatcher.stop(patience=plan.timeout)
            await _joined(running)
    except TimeoutError as error:
        raise EngineError(f"The replay did not end within {plan.timeout:g} s.") from error
    finally:
        running.cancel()
        watching.cancel()
        await asyncio.gather(running, watching, return_exceptions=True)
    progress(Progress("done", 1.0))
    return _recording(window, stage, meter)


async def _window(
    running: asyncio.Task[None],
    plan: ReplayPlan,
    clock: Clock,
    stage: Stage,
    progress: ProgressSink,
    at_edge: Callable[[], None],
    hopeless: Callable[[Window, Sequence[Reply]], bool],
) -> Window:
    """Warm up and let the window pass. The warm-up lasts until a request has ended, if that takes longer."""
    begun = clock.now()
    if plan.window is None:
        await _pass_time("measuring", plan.timeout, running, progress)
        await asyncio.to_thread(at_edge)
        ends = [reply.record.end for reply in stage.dispatcher.replies]
        if not ends:
            raise EngineError("The workload ended without a single request.")
        return Window(min(reply.record.arrival for reply in stage.dispatcher.replies), Seconds(max(ends) + 1e-6))
    await _pass_time("warming", plan.warmup, running, progress)
    while not stage.dispatcher.replies and not running.done() and clock.now() - begun < plan.timeout:
        await _pass_time("warming", _TICK, running, lambda more: None)
    await asyncio.to_thread(at_edge)
    start = clock.now()

    def over() -> bool:
        now = clock.now()
        return now > start and hopeless(Window(start, now), stage.dispatcher.replies)

    await _pass_time("measuring", plan.window, running, progress, over)
    window = Window(start, clock.now())
    await asyncio.to_thread(at_edge)
    return window


async def _pass_time(
    stage: str,
    duration: Seconds,
    running: asyncio.Task[None],
    progress: ProgressSink,
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Wait ``duration`` under load, or until ``over``, or until the load ends; what it raises is raised here."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while (left := start + duration - loop.time()) > 0 and not running.done() and not over():
        progress(Progress(stage, 1 - left / duration))
        await asyncio.wait([running], timeout=min(left, _TICK))
    if running.done():
        await _joined(running)


async def _joined(running: asyncio.Task[None]) -> None:
    """The end of the load. The first error of its lanes stands for all."""
    try:
        await running
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__  # the group around it tells nothing, the cause may be a lack of memory


def _recording(window: Window, stage: Stage, meter: LagMeter) -> Recording:
    dispatcher = stage.dispatcher
    return Recording(
        window=window,
        replies=tuple(dispatcher.replies),
        asks=dispatcher.asks,
        client=meter.between(window.start, window.end, dispatcher.lags),
        errors=dispatcher.errors,
        cut=tuple(dispatcher.cut),
        skipped=stage.pacer.skipped,
    )

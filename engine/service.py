"""The engine's thread: it takes mail, steps, and sends each client its outputs, until it is closed or dies.

Everything here but ``stats`` and ``end`` belongs to that one thread. It knows text only through each stream's
detokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from energyopt.core.clock import Clock
from energyopt.core.errors import EngineDeadError, OutOfMemoryError, OverloadedError
from energyopt.core.records import FinishReason, RequestRecord, StepRecord
from energyopt.core.units import Seconds

from .backlog import Turnover
from .batch import Runner, Sampled
from .deadlines import Deadlines
from .idle import IdleSleep
from .intake import Intake, Mail
from .output import Output
from .ports import EngineStats
from .scheduler import Scheduler
from .settled import NewToken, Settled
from .step import StepLoop, request_record
from .stream import Stream, deliver

logger = logging.getLogger(__name__)

_WAKE_AGAIN = 5.0
"""Seconds after which a client may ask an engine again that had no memory to wake."""

_PATIENCE = 0.005
"""Seconds that a loop sleeps for a lower tier before it looks for new requests again."""


def ignore(record: object) -> None:
    """The hook of a caller who wants no records."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Who is told of each step and each finished request, on the engine's thread."""

    on_step: Callable[[StepRecord], None] = ignore
    on_request: Callable[[RequestRecord], None] = ignore


class EngineService:
    """Drives one scheduler and one runner for the streams that come in through ``intake``."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        intake: Intake,
        turnover: Turnover,
        clock: Clock,
        hooks: Hooks,
        idle: IdleSleep | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._intake = intake
        self._turnover = turnover
        self._clock = clock
        self._hooks = hooks
        self._steps = StepLoop(scheduler, runner, self._emit)
        self._streams: dict[str, Stream] = {}
        self._deadlines = Deadlines()
        self._idle = idle
        self._stats = EngineStats()
        self._publish()

    @property
    def stats(self) -> EngineStats:
        """The snapshot made after the last step; any thread."""
        return self._stats

    @property
    def _busy(self) -> bool:
        """Whether there is something to do without new mail; copies that end must be taken note of."""
        return self._scheduler.has_work or self._scheduler.cache.busy

    @property
    def _closing(self) -> bool:
        return not self._intake.open

    def serve(self) -> None:
        """Serve until closed. An error of the runner or of a hook ends every stream with EngineDeadError."""
        try:
            while self._intake.open:
                self._take(self._next_mail())
                if self._closing:
                    break
                if self._deadlines.any:
                    self._end(self._deadlines.due(self._clock.now()), FinishReason.DEADLINE)
                if not self._steps.step():
                    self._publish()  # copies that ended give blocks back without a step
                    if self._busy:
                        self._scheduler.cache.wait(_PATIENCE)
                if self._scheduler.lost:
                    self._end_lost()
                self._intake.placed(running=self._scheduler.num_running, waiting=self._scheduler.num_waiting)
            self._take(self._intake.collect(block=False))
            self._end(tuple(self._streams.values()), FinishReason.ABORT)
        except BaseException as error:
            # The border of the thread, SystemExit included: each waiting client receives the cause.
            logger.error("The engine died: %s", error)
            logger.debug("the cause in full", exc_info=error)
            self.end(f"The engine died: {type(error).__name__}: {error}", error)
        else:
            self.end("The engine is closed.", None)
        finally:
            self._scheduler.cache.close()
            self._runner.close()

    def _next_mail(self) -> Mail:
        """What arrived; with nothing to do it is waited for, and an engine that waits long enough falls asleep."""
        busy = self._busy
        if self._idle is None:
            return self._intake.collect(block=not busy)
        if not busy:
            self._idle.rest()
        mail = self._intake.collect(block=not busy, patience=self._idle.patience)
        if self._closing:
            return mail  # who sleeps ends asleep
        lent = self._scheduler.cache.pool.num_used > 0  # to another engine, which reads them from the device
        try:
            self._idle.turn(busy or lent or bool(mail.submitted))
        except OutOfMemoryError as error:
            self._refuse(mail, error)
        return mail

    def _refuse(self, mail: Mail, cause: OutOfMemoryError) -> None:
        """There is no memory to wake: whoever asked may try again, when others have given some back."""
        logger.warning("the engine cannot wake: %s", cause)
        message = f"The engine sleeps and cannot wake now: {cause}"
        refused, mail.submitted = mail.submitted, []
        for stream in refused:
            self._intake.release(stream)
        deliver((stream, _caused(OverloadedError(message, retry_after=_WAKE_AGAIN), cause)) for stream in refused)

    def end(self, message: str, cause: BaseException | None) -> None:
        """Serve nothing more: whoever still waits receives EngineDeadError. Any thread."""
        streams = self._intake.die(_death(message, cause))
        deliver((stream, _death(message, cause)) for stream in streams)

    def _end_lost(self) -> None:
        """End requests whose hand-over failed, where the policy says so."""
        lost, self._scheduler.lost = self._scheduler.lost, []
        self._end([self._streams[request.id] for request in lost if request.id in self._streams], FinishReason.ERROR)

    def _take(self, mail: Mail) -> None:
        for stream in mail.submitted:
            self._streams[stream.request.id] = stream
            self._scheduler.add(stream.request)
            self._deadlines.watch(stream)
        for errand in mail.errands:
            errand.run()
        if mail:
            self._end(mail.aborted, FinishReason.ABORT)

    def _emit(self, settled: Settled, record: StepRecord) -> None:
        """After each step. Hooks come before outputs: a reader of a last output finds its records made."""
        self._hooks.on_step(record)
        self._send([self._answer(new, record.end) for new in settled.tokens])

    def _answer(self, new: NewToken, at: Seconds) -> tuple[Stream, Output]:
        """The output that new tokens make. A token that ends the request by its id adds no text."""
        request = new.request
        stream, given = self._streams[request.id], new.given
        first = len(request.output) == len(given)
        text, kept = self._text_of(stream, given)
        if stream.detokenizer.stopped:
            self._scheduler.finish(request, FinishReason.STOP)
            request.finish_reason = FinishReason.STOP  # also when the same token exhausted max_tokens
            self._scheduler.take_back(request, len(given) - kept)
        return stream, Output(
            request.id,
            text,
            tuple(one.token for one in given[:kept]),
            tuple(one.logprobs for one in given[:kept] if one.logprobs is not None),
            request.finish_reason,
            self._record(stream, at),
            request.kv.offer,
            None if request.guide is None or request.finish_reason is None else request.guide.failure,
            tuple(request.scores) if first else (),
        )

    def _text_of(self, stream: Stream, given: Sequence[Sampled]) -> tuple[str, int]:
        """The text of new tokens, and how many of them came up to the end of a stop string, if there is one."""
        request, text = stream.request, ""
        for number, one in enumerate(given, 1):
            ended = number == len(given) and request.finish_reason is not None
            silent = ended and request.finish_reason is FinishReason.STOP and self._scheduler.endings.by_id(request)
            text += "" if silent else stream.detokenizer.add(one.token)
            text += stream.detokenizer.flush() if ended else ""
            if stream.detokenizer.stopped:
                return text, number
        return text, len(given)

    def _end(self, streams: Iterable[Stream], reason: FinishReason) -> None:
        """End streams that still live before their time; text that was held back is sent."""
        now = self._clock.now()
        parcels: list[tuple[Stream, Output]] = []
        for stream in streams:
            request = stream.request
            if self._streams.get(request.id) is stream and request.finish_reason is None:
                self._scheduler.finish(request, reason)
                text = stream.detokenizer.flush()
                parcels.append((stream, Output(request.id, text, (), (), reason, self._record(stream, now))))
        self._send(parcels)

    def _record(self, stream: Stream, at: Seconds) -> RequestRecord | None:
        """The record of a stream's request if it has ended, after telling the hook."""
        if stream.request.finish_reason is None:
            return None
        record = request_record(stream.request, at)
        self._scheduler.counters.ended(record.finish_reason)
        self._turnover.ended(at)
        self._hooks.on_request(record)
        return record

    def _send(self, parcels: list[tuple[Stream, Output]]) -> None:
        """Deliver outputs. Ids are released first, so that a client may use its id again at once.

        Nothing before this line has let go of a stream: if a hook raised, ``end`` still reaches every one of them.
        """
        for stream, output in parcels:
            if output.finish_reason is not None:
                del self._streams[stream.request.id]
                self._intake.release(stream)
        self._publish()
        lost = deliver(parcels)
        if lost:
            self._end(lost, FinishReason.ABORT)

    def _publish(self) -> None:
        scheduler, cache, counters = self._scheduler, self._scheduler.cache, self._scheduler.counters
        pool = cache.pool
        self._stats = EngineStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            blocks_total=pool.num_blocks,
            prompt_tokens=counters.prompt_tokens,
            output_tokens=counters.output_tokens,
            preemptions=counters.preemptions,
            steps=counters.steps,
            step_seconds=counters.step_seconds,
            finished_by_reason=dict(counters.finished),
            prompt_tokens_by_source=dict(counters.prompt_by_source),
            loading=scheduler.num_loading,
            load_failures=cache.load_failures,
            min_hit_tokens=cache.layout.grain if cache.prefix_caching else None,
            retention_interval=cache.retention.interval,
            sleep=None if self._idle is None else self._idle.counts,
            drafts=None if scheduler.drafts is None else scheduler.drafts.snapshot(),
        )


def _death(message: str, cause: BaseException | None) -> EngineDeadError:
    return _caused(EngineDeadError(message), cause)


ErrorT = TypeVar("ErrorT", bound=Exception)


def _caused(error: ErrorT, cause: BaseException | None) -> ErrorT:
    """One error object per client: a traceback is written into an exception where it is raised."""
    error.__cause__ = cause
    return error

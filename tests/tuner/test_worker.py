"""One trial from launch to result, in this process, over a scripted client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import (
    ConfigError,
    EnergyoptError,
    EngineDeadError,
    EngineError,
    LaunchError,
    OutOfMemoryError,
    PromptTooLongError,
    RequestError,
)
from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord, StepShare
from energyopt.core.results import EnergyReading, EnergySplit, Scope, Source
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Joules, Seconds
from energyopt.core.workload import Session, Turn, Workload
from tuner.ports import Progress
from tuner.replay.ask import Ask, ReplayClient, Reply
from tuner.wire import TrialJob
from tuner.worker import TrialRig, run_trial

CLOCK = MonotonicClock()


class SteadyMeter:
    """100 W, always."""

    reasons: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.windows: list[tuple[float, float]] = []
        self.asked_at = 0.0

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        self.windows.append((start, end))
        self.asked_at = CLOCK.now()
        joules, length = Joules(100 * (end - start)), Seconds(end - start)
        return (
            EnergyReading(
                device="fake-0", joules=joules, error=Joules(1), scope=Scope.GPU, source=Source.COUNTER, window=length
            ),
        )

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit:
        return EnergySplit(prefill=Joules(0), decode=Joules(100 * (end - start)), idle=Joules(0), overhead=Joules(0))


class QuickClient:
    """Answers in 10 ms and writes the step of it; ``judge`` may fail a request by its running number.

    Who asks for ``outgrows`` tokens has outgrown the context.
    """

    def __init__(self, steps: list[StepRecord], judge: Callable[[int], EnergyoptError | None]) -> None:
        self.tokens_asked: list[int] = []
        self.delay = 0.01
        self.outgrows: int | None = None
        self._steps, self._judge = steps, judge

    async def send(self, ask: Ask) -> Reply:
        error = self._judge(len(self.tokens_asked))
        self.tokens_asked.append(ask.output_tokens)
        if isinstance(error, EngineDeadError):
            raise error
        if ask.output_tokens == self.outgrows:
            error = PromptTooLongError("too long")
        start = CLOCK.now()
        await asyncio.sleep(self.delay if ask.output_tokens > 1 else 0.01)
        end = CLOCK.now()
        self._steps.append(
            StepRecord(start, end, ("fake-0",), (StepShare(ask.id, Phase.PREFILL, 6, 4, {"device": 4}),))
        )
        reason = FinishReason.LENGTH if error is None else FinishReason.ERROR
        times = (end,) * ask.output_tokens
        record = RequestRecord(ask.id, start, end, 10, 4, ask.output_tokens, reason, times, ask.session)
        return Reply(record, "a", error=error)

    def abort(self, request_id: str) -> None:
        """Every request ends soon enough by itself."""


class Rig:
    """What a builder returns, and what became of it."""

    def __init__(self, judge: Callable[[int], EnergyoptError | None] = lambda number: None) -> None:
        self.steps: list[StepRecord] = []
        self.client = QuickClient(self.steps, judge)
        self.meter = SteadyMeter()
        self.closed = 0
        self.built: list[tuple[EngineConfig, str]] = []

    def close(self) -> None:
        self.closed += 1

    def build(self, config: EngineConfig, meter: str) -> TrialRig:
        self.built.append((config, meter))
        client: ReplayClient = self.client
        return TrialRig(client, self.meter, self.steps, self.close)


def job(warmup: float = 0.1, window: float = 0.3) -> TrialJob:
    session = Session(id="s", turns=(Turn(text="hi", output_tokens=4),))
    return TrialJob(
        deployment=Deployment(decode=PoolConfig(engine=EngineConfig(model="fake"))),
        workload=Workload(name="w", seed=0, sessions=(session,), concurrency=2),
        plan=MeasurePlan(warmup=Seconds(warmup), window=Seconds(window), timeout=Seconds(20)),
        slos=("e2e:p90<1s",),
        meter="none",
    )


def ignore(progress: Progress) -> None:
    """Nobody watches."""


def test_a_job_survives_its_way_through_a_pipe() -> None:
    assert TrialJob.model_validate_json(job().model_dump_json()) == job()


def test_a_trial_is_probed_warmed_up_measured_and_closed() -> None:
    rig, seen = Rig(), list[Progress]()
    started = CLOCK.now()
    result = run_trial(job(), rig.build, seen.append)
    (window,) = rig.meter.windows
    assert rig.built == [(job().deployment.decode.engine, "none")]
    assert rig.closed == 1
    assert rig.client.tokens_asked[0] == 1  # the probe
    assert set(rig.client.tokens_asked[1:]) == {4}
    assert window[0] - started >= 0.1
    assert result.window == window[1] - window[0] >= 0.3
    assert rig.meter.asked_at - window[1] >= 0.5  # late enough for samples after the window
    assert result.output_tokens == 4 * result.requests > 40
    assert result.hit_rate == 0.4
    assert result.power_valid
    assert result.tokens_per_joule == pytest.approx(result.output_tokens / (100 * result.window))
    assert result.verdicts[0].state == "met"
    assert seen[0] == Progress("launching", 0.0)
    assert seen[-1] == Progress("done", 1.0)
    measuring = [p.fraction for p in seen if p.stage == "measuring"]
    assert measuring == sorted(measuring)


def test_the_window_of_a_slow_engine_waits_for_its_first_answer() -> None:
    rig = Rig()
    rig.client.delay = 0.8
    result = run_trial(job(warmup=0.1, window=1.0), rig.build, ignore)
    (window,) = rig.meter.windows
    first = rig.steps[1]  # the one before it is the probe's
    assert window[0] >= first.end
    assert result.requests == 2  # both lanes' second answers


def test_an_engine_that_does_not_answer_did_not_start() -> None:
    rig = Rig(lambda number: RequestError("the template is broken"))
    with pytest.raises(LaunchError, match="does not answer: the template is broken"):
        run_trial(job(), rig.build, ignore)
    assert rig.closed == 1


def test_failures_under_load_are_counted() -> None:
    rig = Rig(lambda number: EngineError("lost") if number > 0 and number % 3 == 0 else None)
    result = run_trial(job(), rig.build, ignore)
    assert 0 < result.failed_requests < result.requests
    assert not result.feasible


@pytest.mark.parametrize("number", [0, 5])
def test_an_engine_that_dies_ends_the_trial_at_once(number: int) -> None:
    rig = Rig(lambda asked: EngineDeadError("gone") if asked == number else None)
    started = CLOCK.now()
    with pytest.raises(EngineDeadError, match="gone"):
        run_trial(job(window=30), rig.build, ignore)
    assert CLOCK.now() - started < 5
    assert rig.closed == 1


def test_what_the_builder_raises_is_raised() -> None:
    def build(config: EngineConfig, meter: str) -> TrialRig:
        raise OutOfMemoryError("the weights do not fit")

    with pytest.raises(OutOfMemoryError):
        run_trial(job(), build, ignore)


def test_two_pools_are_not_ours() -> None:
    pool = job().deployment.decode
    for deployment in (
        Deployment(decode=pool, prefill=pool),
        Deployment(decode=pool.model_copy(update={"replicas": 2})),
    ):
        rig = Rig()
        with pytest.raises(ConfigError, match="one engine"):
            run_trial(job().model_copy(update={"deployment": deployment}), rig.build, ignore)
        assert not rig.built


def test_a_window_beyond_hope_ends_early_and_is_a_miss() -> None:
    doomed = job(window=1.5).model_copy(update={"slos": ("e2e:p90<1ms",)})
    result = run_trial(doomed, Rig().build, ignore)
    assert result.window < 1.2
    assert not result.feasible
    assert result.verdicts[0].state == "violated"


def test_turns_that_outgrow_the_context_are_counted_in_the_window() -> None:
    rig = Rig()
    rig.client.outgrows = 5
    session = Session(id="s", turns=(Turn(text="hi", output_tokens=4), Turn(text="and?", output_tokens=5)))
    workload = Workload(name="w", seed=0, sessions=(session,), concurrency=2)
    result = run_trial(job(warmup=0.0).model_copy(update={"workload": workload}), rig.build, ignore)
    assert result.failed_requests == 0
    assert result.cut_requests > 0
    assert abs(result.cut_requests - result.requests) <= workload.concurrency, "of each session one is served, one cut"

"""What runs inside a trial's process: build the engine, load it, measure the window, answer on a pipe.

``serve_trial`` is the whole main of that process. It ends with the process that started it, and it offers itself
first to the kernel when memory runs out, so that the study lives on and the shortage becomes a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, LaunchError
from energyopt.core.records import StepRecord
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Bytes, Seconds, bytes_from_kibibytes
from energyopt.core.workload import Workload

from .counting import Window
from .hopeless import SHARE, hopeless
from .ports import Meter, Progress, ProgressSink
from .replay.ask import Ask, Prompt, ReplayClient, Reply
from .replay.closed import closed_loop
from .replay.measure import Recording, ReplayPlan, replay
from .window import report
from .wire import MAX_JOB_BYTES, Failure, Line, Stage, TrialJob

_BRACKET = Seconds(0.5)
"""The load goes on this long after the window, so that the meter has samples on both sides of its end."""


@dataclass(frozen=True, slots=True)
class TrialRig:
    """A running engine with its meter, as the composition root builds it for one trial.

    ``steps`` grows by one record a step, from the engine's start on. ``close`` ends engine and meter; idempotent.
    """

    client: ReplayClient
    meter: Meter
    steps: Sequence[StepRecord]
    close: Callable[[], None]


BuildRig = Callable[[EngineConfig, str], TrialRig]
"""Builds and starts the rig of an engine with the meter of a kind ("auto", "none", ...); its errors fail the launch."""


def run_trial(job: TrialJob, build: BuildRig, progress: ProgressSink, clock: Clock | None = None) -> RunResult:
    """Build, measure, close. Raises what the builder and the engine raise; ``wire.Failure`` sorts that."""
    pool = job.deployment.decode
    if job.deployment.prefill is not None or pool.replicas != 1:
        raise ConfigError("The embedded evaluator runs one engine: no prefill pool, and replicas = 1.")
    progress(Progress("launching", 0.0))
    rig = build(pool.engine, job.meter)
    try:
        return asyncio.run(measure(rig, job, progress, clock or MonotonicClock()))
    finally:
        rig.close()


async def measure(rig: TrialRig, job: TrialJob, progress: ProgressSink, clock: Clock) -> RunResult:
    """The result of one trial on a running engine; see ``drive``."""
    slos = [Slo.parse(text) for text in job.slos]
    recording = await drive(rig.client, job.workload, job.plan, slos, progress, clock)
    return report(
        recording.window,
        recording.records,
        tuple(rig.steps),
        rig.meter,
        slos,
        cut_requests=recording.cut_requests,
        peak_memory_bytes=peak_memory(),
    )


async def drive(
    client: ReplayClient,
    workload: Workload,
    plan: MeasurePlan,
    slos: Sequence[Slo],
    progress: ProgressSink,
    clock: Clock,
) -> Recording:
    """Probe the engine, warm it up under load, keep the window, stop the load; the window and every request.

    The warm-up lasts until a request has ended, if that takes longer than planned: a slow engine's window must not
    lie in the first prompts of its lanes. An abort takes a step of the engine, however long that is, so the only
    bound on the stop is that of the whole trial. A window whose SLO is beyond hope ends early: the result is of what
    was measured, and misses it.
    """
    await _probe(client, clock)
    load, stage = closed_loop(workload, client, clock)
    steady = ReplayPlan(plan.warmup, plan.window, bracket=_BRACKET, timeout=plan.timeout)

    def beyond_hope(part: Window, replies: Sequence[Reply]) -> bool:
        enough = part.length >= SHARE * plan.window
        return enough and hopeless(part, slos, [reply.record for reply in replies]) is not None

    return await replay(load, stage, steady, clock, progress, hopeless=beyond_hope)


async def _probe(client: ReplayClient, clock: Clock) -> None:
    """An engine is ready when it has answered. Raises LaunchError with the reason if it does not."""
    prompt = Prompt(messages=({"role": "user", "content": "Ready?"},))
    reply = await client.send(Ask("probe", "probe", prompt, 1, clock.now()))
    if reply.record.failed:
        raise LaunchError(f"The engine started but does not answer: {reply.error or 'the request was aborted'}")


def peak_memory() -> Bytes:
    """The largest resident set that this process had (Linux: ``ru_maxrss`` is in KiB)."""
    return bytes_from_kibibytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def serve_trial(build: BuildRig, *, stdin: int = 0, stdout: int = 1) -> int:
    """Main of a trial's process; returns its exit code: 0 once a result or a trial's failure was written.

    Reads the job from ``stdin`` and answers on ``stdout``, which only this function may write to from then on:
    whatever else prints goes to stderr. A fault of the program is raised, for the traceback to be seen.
    """
    answers = os.dup(stdout)
    os.dup2(sys.stderr.fileno(), stdout)
    _prefer_as_victim()
    with os.fdopen(answers, "wb") as out, os.fdopen(os.dup(stdin), "rb") as source:

        def write(line: Line) -> None:
            out.write(line.encode())
            out.flush()

        text = source.readline(MAX_JOB_BYTES)
        if not text.endswith(b"\n"):
            return 1  # the parent is gone, or it is not ours
        threading.Thread(target=_end_with_parent, args=(os.dup(stdin),), daemon=True).start()
        try:
            job = TrialJob.model_validate_json(text)
            result = run_trial(job, build, lambda p: write(Line(progress=Stage(stage=p.stage, fraction=p.fraction))))
        except Exception as error:  # the border of the process: what is not a trial's failure goes on as it is
            failure = Failure.of(error)
            if failure is None:
                raise
            write(Line(error=failure))
        else:
            write(Line(result=result))
    return 0


def _end_with_parent(stdin: int) -> None:
    """Block until the other end of ``stdin`` is closed, by intent or by death; then die with every child."""
    while os.read(stdin, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)  # started by hand, in a group that is not ours


def _prefer_as_victim() -> None:
    """Ask the kernel to choose this process when memory runs out; where it does not know the file, nothing is lost."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")

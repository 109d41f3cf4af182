"""vLLM and SGLang over a program that behaves like them: launch, measure, end; and every way in which they fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.errors import CrashError, LaunchError, OutOfMemoryError, TrialError, TrialTimeoutError
from energyopt.core.records import StepRecord
from energyopt.core.results import EnergyReading, EnergySplit, RunResult, Scope, Source
from energyopt.core.slo import Slo
from energyopt.core.study import Budget, MeasurePlan, StudyState, TrialOutcome
from energyopt.core.units import Joules, Seconds
from energyopt.core.workload import Workload
from energyopt.store.memory import MemoryStudyStore
from tuner.evaluators.launched import DIALECTS, VLLM, Launch, LaunchedEvaluator, last_words
from tuner.evaluators.server import await_freed
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner
from tuner.ports import Meter, Progress, ProgressSink

SLOS = [Slo.parse("ttft:p90<5s")]
Named = Callable[[str], Deployment]


class Steady:
    """100 W, always."""

    reasons: tuple[str, ...] = ()

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        length = Seconds(end - start)
        return (
            EnergyReading(
                device="gpu-0", joules=Joules(100 * length), error=Joules(1), scope=Scope.GPU, source=Source.COUNTER,
                window=length,
            ),
        )  # fmt: skip

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit | None:
        return None


@contextmanager
def steady(deployment: Deployment) -> Iterator[Meter]:
    yield Steady()


@pytest.fixture
def launch(stub: tuple[str, ...], tmp_path: Path) -> Launch:
    return Launch(program=stub, log_dir=tmp_path / "logs", grace=Seconds(0.3))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split(") ")[1][0] != "Z"


@pytest.mark.parametrize(("name", "version"), [("vllm", "0.23.1rc2"), ("sglang", "0.5.9")])
def test_a_trial_launches_waits_for_a_completion_measures_and_ends_everything(
    name: str, version: str, launch: Launch, deployment: Named, plan: MeasurePlan, workload: Workload, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    evaluator = LaunchedEvaluator(DIALECTS[name], launch, steady)
    started = tmp_path / "started"
    result = evaluator.run(deployment(f"ok={started}"), workload, plan, SLOS, seen.append)
    assert result.failed_requests == 0
    assert result.output_tokens > 40
    assert result.tokens_per_joule == pytest.approx(result.output_tokens / (100 * result.window))
    assert result.hit_rate == pytest.approx(0.4)
    assert result.verdicts[0].slo == "ttft:p90<5000ms"
    assert evaluator.version == version
    assert (seen[0].stage, seen[-1].stage) == ("launching", "done")
    pid, helper, *words = started.read_text(encoding="utf-8").split()
    limit = "--max-num-seqs" if name == "vllm" else "--max-running-requests"
    assert words[words.index(limit) + 1] == "4"
    assert ("--enable-prompt-tokens-details" if name == "vllm" else "--enable-cache-report") in words
    assert not alive(int(pid))
    assert not alive(int(helper))


FAULTS = {
    "oom": (OutOfMemoryError, "ran out of memory"),
    "crash": (CrashError, "last words: Segmentation fault"),
    "dies": (CrashError, "exit code 7.*NCCL error"),
    "late-oom": (OutOfMemoryError, "ran out of memory"),
    "busy": (LaunchError, "No port could be had in 3 attempts"),
    "never-ready": (TrialTimeoutError, "did not answer within 3 s"),
    "hang": (TrialTimeoutError, "did not answer within 3 s"),
    "stalls": (TrialTimeoutError, "did not finish"),
    "wrong": (LaunchError, "answered with 1 tokens"),
}


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "wrong"])
def test_each_fault_is_a_result_of_its_kind(
    fault: str, launch: Launch, deployment: Named, plan: MeasurePlan, workload: Workload
) -> None:
    kind, words = FAULTS[fault]
    slow = fault in ("never-ready", "hang", "stalls")
    short = plan.model_copy(update={"timeout": Seconds(3.0 if slow else 60.0)})
    with pytest.raises(kind, match=words):
        LaunchedEvaluator(VLLM, launch, steady).run(deployment(fault), workload, short, SLOS, lambda progress: None)
    assert launch.log_dir is not None
    assert list(launch.log_dir.iterdir())


def test_answers_of_the_wrong_length_are_failed_requests(
    launch: Launch, deployment: Named, plan: MeasurePlan, workload: Workload
) -> None:
    result = LaunchedEvaluator(VLLM, launch, steady).run(
        deployment("wrong"), workload, plan, SLOS, lambda progress: None
    )
    assert result.failed_requests == result.requests > 0
    assert not result.feasible


def test_a_port_that_was_taken_is_tried_again(
    launch: Launch, deployment: Named, plan: MeasurePlan, workload: Workload, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    started.touch()
    evaluator = LaunchedEvaluator(VLLM, launch, steady)
    assert evaluator.run(deployment(f"busy-once={started}"), workload, plan, SLOS, lambda progress: None).feasible
    assert started.read_text(encoding="utf-8").count("--port") == 2


def test_a_program_that_is_not_there_is_a_failed_launch(
    deployment: Named, plan: MeasurePlan, workload: Workload
) -> None:
    evaluator = LaunchedEvaluator(VLLM, Launch(program=("/no/such/vllm",)), steady)
    with pytest.raises(LaunchError, match="cannot be started"):
        evaluator.run(deployment("ok"), workload, plan, SLOS, lambda progress: None)


def test_the_memory_of_the_last_engine_is_waited_for() -> None:
    free = iter([{"host": 980, "gpu": 100}, {"host": 300, "gpu": 990}, {"host": 960, "gpu": 960}, {}])
    assert await_freed(lambda: next(free), {"host": 1000, "gpu": 1000})
    assert next(free) == {}  # only now both were back
    assert not await_freed(lambda: {"host": 1000, "gpu": 100}, {"host": 1000, "gpu": 1000}, patience=Seconds(0.0))
    assert await_freed(dict, {"host": 1000})
    assert await_freed(lambda: {"host": 0}, {})


class Scripted:
    """Fails as each number of sequences says, on the real evaluator's own errors."""

    def __init__(self, inner: LaunchedEvaluator, models: dict[int, str]) -> None:
        self._inner, self._models = inner, models

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        pool = deployment.decode
        engine = pool.engine.model_copy(update={"model": self._models[pool.engine.max_num_seqs]})
        named = Deployment(decode=pool.model_copy(update={"engine": engine}))
        return self._inner.run(named, workload, plan, slos, progress)


def test_the_study_goes_on_through_every_fault(launch: Launch, plan: MeasurePlan, workload: Workload) -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    models = {32: "oom", 64: "ok", 128: "dies"}
    spec = toy_spec(
        workload=workload,
        verify_workload=workload,
        plan=plan,
        slos=("ttft:p90<5s",),
        budget=Budget(trials=3, verify_pairs=0),
        space=toy_spec().space.model_copy(update={"knobs": toy_spec().space.knobs[:1]}),
    )
    study = store.create_study(spec, {})
    evaluator = Scripted(LaunchedEvaluator(VLLM, launch, steady), models)
    found = StudyRunner(store, evaluator, FakePowerController(), clock, "me").run(study.id)
    assert found.state is StudyState.SUCCEEDED
    outcomes = {t.deployment.decode.engine.max_num_seqs: t.outcome for t in store.trials(study.id)}
    assert outcomes == {32: TrialOutcome.OOM, 64: TrialOutcome.FEASIBLE, 128: TrialOutcome.CRASHED}


def test_the_cause_is_told_not_what_the_remains_warn_of() -> None:
    log = (
        "WARNING fd limit errors like `OSError: [Errno 24]`\n"
        "(Worker pid=1) ERROR 11-30 [executor.py:1063] ValueError: No common block size for 16.\n"
        "RuntimeError: Engine core initialization failed.\n"
        "UserWarning: leaked shared_memory objects\n  warnings.warn('resource_tracker')\n"
    )
    assert last_words(log) == "ValueError: No common block size for 16."
    assert last_words("starting\nSegmentation fault in kernel\n") == "Segmentation fault in kernel"
    assert last_words("") == ""


def test_faults_are_trial_errors() -> None:
    assert all(issubclass(kind, TrialError) for kind, _ in FAULTS.values())

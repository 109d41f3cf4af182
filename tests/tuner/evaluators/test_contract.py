"""What holds for every evaluator: results in one form, failures of one family, progress in one order."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest

from energyopt.core.config import Deployment, EngineConfig, ParallelLayout, PoolConfig
from energyopt.core.errors import ConfigError, LaunchError, OutOfMemoryError, TrialError
from energyopt.core.slo import Slo
from energyopt.core.study import Knob, MeasurePlan, Origin, Space, TrialOutcome, TrialRecord, TrialState
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload
from tests.tuner.evaluators.unmetered import unmetered
from tuner.evaluators.embedded import EmbeddedEvaluator
from tuner.evaluators.endpoint import EndpointEvaluator, check_knobs
from tuner.evaluators.launched import DIALECTS, Launch, LaunchedEvaluator
from tuner.evaluators.recorded import RecordedEvaluator
from tuner.evaluators.server import free_port
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.fake_study import toy_spec
from tuner.ports import Evaluator, Progress
from tuner.replay.http import Endpoint

SLOS = [Slo.parse("ttft:p90<30s"), Slo.parse("itl:p99<10s")]
Named = Callable[[str], Deployment]


@contextmanager
def serving(stub: Sequence[str]) -> Iterator[str]:
    """The stub, running as anybody's server."""
    port = free_port()
    with subprocess.Popen([*stub, "ok", "--port", str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                with closing(socket.socket()) as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            time.sleep(0.5)  # it refuses completions for a moment
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def recorded(deployment: Deployment, workload: Workload, plan: MeasurePlan) -> RecordedEvaluator:
    result = SimulatedEvaluator("h100").run(deployment, workload, plan, SLOS, lambda progress: None)
    trial = TrialRecord(
        number=0,
        origin=Origin.BASELINE,
        params={},
        deployment=deployment,
        state=TrialState.DONE,
        outcome=TrialOutcome.FEASIBLE,
        result=result,
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )
    failed = trial.model_copy(
        update={"deployment": too_big(deployment), "outcome": TrialOutcome.OOM, "result": None, "error": "no room"}
    )
    spec = toy_spec(workload=workload, verify_workload=workload, plan=plan, slos=tuple(map(str, SLOS)))
    return RecordedEvaluator(spec, [trial, failed])


def too_big(deployment: Deployment) -> Deployment:
    engine = deployment.decode.engine.model_copy(update={"max_num_seqs": 4096, "max_num_batched_tokens": 8192})
    return Deployment(decode=deployment.decode.model_copy(update={"engine": engine}))


@pytest.fixture(params=["embedded", "simulator", "replay", "endpoint", "vllm", "sglang"])
def case(
    request: pytest.FixtureRequest, stub: tuple[str, ...], evaluator: EmbeddedEvaluator, deployment: Named,
    workload: Workload, plan: MeasurePlan,
) -> Iterator[tuple[Evaluator, Deployment]]:  # fmt: skip
    kind, ok = request.param, deployment("ok")
    if kind == "embedded":
        yield evaluator, ok
    elif kind == "simulator":
        yield SimulatedEvaluator("h100", model="qwen3-8b"), deployment("qwen3-8b")
    elif kind == "replay":
        yield recorded(deployment("qwen3-8b"), workload, plan), deployment("qwen3-8b")
    elif kind == "endpoint":
        with serving(stub) as url:
            yield EndpointEvaluator(Endpoint(url, "ok", modern=False), unmetered), ok
    else:
        yield LaunchedEvaluator(DIALECTS[kind], Launch(program=stub, grace=Seconds(0.3)), unmetered), ok


def test_a_run_says_the_same_things_whoever_made_it(
    case: tuple[Evaluator, Deployment], workload: Workload, plan: MeasurePlan
) -> None:
    evaluator, deployment = case
    seen: list[Progress] = []
    result = evaluator.run(deployment, workload, plan, SLOS, seen.append)
    assert result.window >= plan.window
    assert result.requests > 0
    assert result.failed_requests == 0
    assert result.output_tokens > 0
    assert result.cached_tokens is not None
    assert (result.prompt_tokens or 0) >= result.cached_tokens >= 0
    assert [verdict.slo for verdict in result.verdicts] == [str(slo) for slo in SLOS]
    assert all(verdict.over == 0 for verdict in result.verdicts)
    assert {"ttft", "itl", "e2e"} <= set(result.latencies)
    assert result.feasible
    assert result.power_valid == (result.tokens_per_joule is not None)
    assert (seen[0].stage, seen[-1]) == ("launching", Progress("done", 1.0))
    assert all(0 <= step.fraction <= 1 for step in seen)


def test_a_recording_repeats_failures_and_makes_nothing_up(
    deployment: Named, workload: Workload, plan: MeasurePlan
) -> None:
    replay = recorded(deployment("qwen3-8b"), workload, plan)
    with pytest.raises(OutOfMemoryError, match="no room"):
        replay.run(too_big(deployment("qwen3-8b")), workload, plan, SLOS, lambda progress: None)
    with pytest.raises(LaunchError, match="never measured"):
        replay.run(deployment("other"), workload, plan, SLOS, lambda progress: None)


@pytest.mark.parametrize("other", ["workload", "measure", "slos"])
def test_a_recording_answers_its_own_questions_only(
    other: str, deployment: Named, workload: Workload, plan: MeasurePlan
) -> None:
    replay = recorded(deployment("qwen3-8b"), workload, plan)
    load = workload.model_copy(update={"seed": 9}) if other == "workload" else workload
    longer = plan.model_copy(update={"window": Seconds(9.0)}) if other == "measure" else plan
    slos = SLOS[:1] if other == "slos" else SLOS
    with pytest.raises(ConfigError, match=f"{other} differs from what was recorded"):
        replay.run(deployment("qwen3-8b"), load, longer, slos, lambda progress: None)
    assert replay.run(deployment("qwen3-8b"), workload, plan, SLOS, lambda progress: None).replayed


def test_an_endpoint_where_nobody_listens_is_a_failed_launch(
    deployment: Named, workload: Workload, plan: MeasurePlan
) -> None:
    nobody = EndpointEvaluator(Endpoint(f"http://127.0.0.1:{free_port()}", "ok"), unmetered)
    with pytest.raises(LaunchError, match="does not answer"):
        nobody.run(deployment("ok"), workload, plan, SLOS, lambda progress: None)


def test_a_running_endpoint_takes_power_knobs_only() -> None:
    check_knobs(Space(knobs=(Knob(path="decode.power.cap", values=(100.0, None)),)))
    with pytest.raises(ConfigError, match="needs an engine that starts anew"):
        check_knobs(Space(knobs=(Knob(path="decode.engine.max_num_seqs", values=(1, 2)),)))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_what_an_engine_cannot_be_asked_is_a_failed_launch(
    kind: str, stub: tuple[str, ...], workload: Workload, plan: MeasurePlan
) -> None:
    pool = PoolConfig(engine=EngineConfig(model="ok", layout=ParallelLayout(tp=2)), replicas=3)
    evaluator = LaunchedEvaluator(DIALECTS[kind], Launch(program=stub), unmetered)
    with pytest.raises(TrialError, match="replicas"):
        evaluator.run(Deployment(decode=pool), workload, plan, SLOS, lambda progress: None)

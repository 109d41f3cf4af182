"""A trial in a process of its own: whatever becomes of the process, the study gets a result or a typed error."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from energyopt.core.config import Deployment, PoolConfig
from energyopt.core.errors import (
    CrashError,
    LaunchError,
    OutOfMemoryError,
    TrialError,
    TrialTimeoutError,
)
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload
from tuner.evaluators.embedded import EmbeddedEvaluator
from tuner.evaluators.oom import KernelKills, oom_kills
from tuner.ports import Evaluator, Progress, ProgressSink

Deploy = Callable[[str], Deployment]
Run = Callable[..., RunResult]


@pytest.fixture
def run(evaluator: EmbeddedEvaluator, deployment: Deploy, workload: Workload, plan: MeasurePlan) -> Run:
    """Run a trial whose child behaves as its model's name says."""

    def run_trial(
        behaviour: str,
        *,
        progress: ProgressSink = lambda progress: None,
        timeout: float = 90.0,
        slos: Sequence[Slo] = (),
    ) -> RunResult:
        timed = plan.model_copy(update={"timeout": Seconds(timeout)})
        as_port: Evaluator = evaluator
        return as_port.run(deployment(behaviour), workload, timed, slos, progress)

    return run_trial


def alive(pid: int) -> bool:
    """Running, that is: neither gone nor a zombie that its new parent has not yet reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(seconds: float, *pids: int) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def pids_in(path: Path) -> list[int]:
    end = time.monotonic() + 15
    while not (path.exists() and len(path.read_text().split()) == 2):
        assert time.monotonic() < end, "the child never came up"
        time.sleep(0.02)
    return [int(word) for word in path.read_text().split()]


def test_a_trial_is_measured_and_its_stages_are_told(run: Run, plan: MeasurePlan) -> None:
    seen: list[Progress] = []
    result = run("fine", progress=seen.append, slos=[Slo.parse("ttft:p90<5s"), Slo.parse("itl:p99<1us")])
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == ["launching", "warming", "measuring", "done"]
    assert all(0 <= progress.fraction <= 1 for progress in seen)
    assert plan.window / 3 <= result.window < plan.window + 0.5  # one SLO is beyond hope, so it may end early
    assert result.requests > 5
    assert result.failed_requests == 0
    assert result.output_tokens > 40
    assert 0 < (result.cached_tokens or 0) < (result.prompt_tokens or 0)
    assert [verdict.state for verdict in result.verdicts][1] == "violated"
    assert [verdict.slo for verdict in result.verdicts] == ["ttft:p90<5000ms", "itl:p99<0.001ms"]
    assert result.energy is None
    assert result.power_reasons == ("no_meter: no sensor measured this window", "this child has no meter")
    assert result.peak_memory_bytes is not None
    assert result.peak_memory_bytes > 10 * 2**20


@pytest.mark.parametrize(
    ("behaviour", "kind", "says"),
    [
        ("abort", CrashError, "killed by SIGABRT; its last words: about to abort"),
        ("bad_alloc", OutOfMemoryError, "killed by SIGABRT; its last words: .*std::bad_alloc"),
        ("sigkill", CrashError, "killed by SIGKILL"),
        ("exit=0", CrashError, "ended with exit code 0 and no result"),
        ("exit=7", CrashError, "ended with exit code 7"),
        ("memory", OutOfMemoryError, "no room for the weights"),
        ("late_oom", OutOfMemoryError, "the KV pool does not fit"),
        ("missing", LaunchError, "No model 'missing'"),
        ("bug", CrashError, "exit code 1 .*KeyError: 'a fault of the program'"),
    ],
)
def test_the_end_of_the_process_is_a_typed_error(run: Run, behaviour: str, kind: type[TrialError], says: str) -> None:
    with pytest.raises(TrialError, match=says) as caught:
        run(behaviour)
    assert caught.type is kind


def test_the_log_keeps_the_last_of_a_flood(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CrashError, match=r"exit code 3.*log: ") as caught:
        run("chatter")
    (log,) = (tmp_path / "logs").iterdir()
    assert str(log) in str(caught.value)
    assert log.stat().st_size == 64 * 1024
    assert len(str(caught.value)) < 1000


def test_a_trial_that_hangs_is_ended_with_everything_it_started(run: Run, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    for seconds in (4, 16, 64):  # on a busy machine the child may not have come up in the first
        with pytest.raises(TrialTimeoutError, match=rf"within {seconds} s"):
            run(f"hang={note}", timeout=seconds)
        if note.exists():
            break
    child, helper = pids_in(note)
    assert not alive(child)
    assert not alive(helper)


def test_a_result_stands_even_if_the_child_does_not_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.evaluators.embedded._EXIT_PATIENCE", Seconds(0.2))
    assert run("stubborn").requests > 0
    assert not alive(pid_of_log(tmp_path))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_ends_the_trial_and_goes_on(run: Run, tmp_path: Path, error: type[BaseException]) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "measuring":
            raise error

    with pytest.raises(error):
        run("fine", progress=interrupt)
    assert not alive(pid_of_log(tmp_path))


def pid_of_log(tmp_path: Path) -> int:
    (log,) = (tmp_path / "logs").iterdir()
    return int(log.stem.rsplit("-", 1)[1])


def test_a_killed_parent_leaves_no_trial_behind(
    command: list[str], tmp_path: Path, deployment: Deploy, workload: Workload, plan: MeasurePlan
) -> None:
    note = tmp_path / "pids"
    script = (
        "import sys\n"
        "from energyopt.core.config import Deployment\n"
        "from energyopt.core.study import MeasurePlan\n"
        "from energyopt.core.workload import Workload\n"
        "from tuner.evaluators.embedded import EmbeddedEvaluator\n"
        "child, deployment, workload, plan = sys.argv[1:]\n"
        "EmbeddedEvaluator([sys.executable, '-c', child]).run(\n"
        "    Deployment.model_validate_json(deployment), Workload.model_validate_json(workload),\n"
        "    MeasurePlan.model_validate_json(plan), (), lambda progress: None)\n"
    )
    parts = (deployment(f"hang={note}"), workload, plan)
    arguments = [part.model_dump_json() for part in parts]
    with subprocess.Popen([sys.executable, "-c", script, command[-1], *arguments]) as parent:
        child, helper = pids_in(note)
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    assert gone_within(2, child, helper)


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="this kernel has no oom_score_adj")
def test_a_trial_offers_itself_to_the_kernel_before_the_study(run: Run, tmp_path: Path) -> None:
    run("score")
    (log,) = (tmp_path / "logs").iterdir()
    assert "score 1000" in log.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import sys; sys.stdout.write('x' * 2_000_000); sys.stdout.flush(); import time; time.sleep(60)",
            "1048576 bytes",
        ),
        ("import os; os.write(1, b'\\xff\\x00 not json\\n{\"result\": {}}\\n[1]\\n')", "exit code 0 and no result.*"),
        ("", "exit code 0 and no result"),
        ("import os, time; os.close(1); time.sleep(0.3); os._exit(5)", "exit code 5"),
    ],
)
def test_foreign_output_is_no_result(
    text: str, says: str, deployment: Deploy, workload: Workload, plan: MeasurePlan
) -> None:
    stranger = EmbeddedEvaluator([sys.executable, "-c", text], grace=Seconds(0.2))
    with pytest.raises(CrashError, match=says):
        stranger.run(deployment("fine"), workload, plan, (), lambda progress: None)


def test_garbage_before_the_result_does_not_hide_it(
    command: list[str], deployment: Deploy, workload: Workload, plan: MeasurePlan
) -> None:
    noisy = "import os\nos.write(1, b'a banner of some library\\n\\xfe\\n{\"progress\": 3}\\n')\n" + command[-1]
    evaluator = EmbeddedEvaluator([sys.executable, "-c", noisy])
    assert evaluator.run(deployment("fine"), workload, plan, (), lambda progress: None).requests > 0


def test_a_job_larger_than_a_pipe_arrives(
    run: Run, workload: Workload, evaluator: EmbeddedEvaluator, deployment: Deploy, plan: MeasurePlan
) -> None:
    turns = workload.sessions[0].turns
    unused = workload.sessions[0].model_copy(
        update={"id": "unused", "turns": (turns[0].model_copy(update={"text": "x" * 10**6}),)}
    )
    large = workload.model_copy(update={"sessions": (*workload.sessions * 20, unused)})
    assert evaluator.run(deployment("fine"), large, plan, (), lambda progress: None).requests > 0


def test_a_command_that_does_not_exist_is_a_failed_launch(
    deployment: Deploy, workload: Workload, plan: MeasurePlan, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError, match="cannot be started"):
        EmbeddedEvaluator([str(tmp_path / "nothing")]).run(
            deployment("fine"), workload, plan, (), lambda progress: None
        )
    with pytest.raises(ValueError, match="empty"):
        EmbeddedEvaluator([])


def test_only_one_engine_is_run(
    evaluator: EmbeddedEvaluator, deployment: Deploy, workload: Workload, plan: MeasurePlan
) -> None:
    pool = deployment("fine").decode
    for wrong in (Deployment(decode=pool, prefill=pool), Deployment(decode=PoolConfig(engine=pool.engine, replicas=2))):
        with pytest.raises(LaunchError, match="runs one engine"):
            evaluator.run(wrong, workload, plan, (), lambda progress: None)


def test_infinite_latencies_cross_the_pipe(
    evaluator: EmbeddedEvaluator, deployment: Deploy, workload: Workload, plan: MeasurePlan
) -> None:
    """A turn that can never fit fails; its infinite latency must arrive as such."""
    turn = workload.sessions[0].turns[0]
    long = workload.sessions[0].model_copy(update={"turns": (turn.model_copy(update={"output_tokens": 5000}),)})
    failing = workload.model_copy(update={"sessions": (workload.sessions[1], long)})
    result = evaluator.run(deployment("fine"), failing, plan, (), lambda progress: None)
    assert result.failed_requests > 0
    assert result.latencies["e2e"].mean == math.inf


def test_kills_by_the_kernel_are_counted_where_it_tells(tmp_path: Path) -> None:
    table = tmp_path / "vmstat"
    table.write_text("nr_free_pages 12\noom_kill 3\nfoo 1\n")
    assert oom_kills(table) == 3
    table.write_text("nr_free_pages 12\n")
    assert oom_kills(table) is None
    assert oom_kills(tmp_path / "absent") is None


def test_a_death_is_memory_if_a_count_grew_and_it_was_a_kill(tmp_path: Path) -> None:
    group = tmp_path / "memory.events"
    group.write_text("low 0\noom 0\noom_kill 0\n")
    kills = KernelKills(tmp_path / "absent", [group])
    assert not kills.explain(-signal.SIGKILL, b"")
    group.write_text("low 0\noom 1\noom_kill 1\n")
    assert kills.explain(-signal.SIGKILL, b"")
    assert kills.explain(137, b"")
    assert kills.explain(1, b"EngineDeadError: EngineCore died unexpectedly")
    assert not kills.explain(1, b"ValueError: no such model")
    assert not KernelKills(tmp_path / "absent", [group]).grew


def test_a_sigkill_is_memory_if_the_kernel_killed_for_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr("tuner.evaluators.oom.oom_kills", lambda file: next(counts) if file.name == "vmstat" else None)
    with pytest.raises(OutOfMemoryError, match="killed by SIGKILL"):
        run("sigkill")

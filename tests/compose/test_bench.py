"""``energyopt bench`` from the words of the command line to stored runs, against the fake server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from energyopt.cli.main import build_app
from energyopt.compose.bench import BenchRequest
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import parse_config
from energyopt.core.errors import ConfigError, LaunchError, NotFoundError
from energyopt.core.runs import RunRecord
from energyopt.core.units import Seconds
from energyopt.store.runs import open_runs
from tuner.replay.compare import compare
from tuner.replay.fake import Behaviour, FakeServer
from tuner.replay.result import BenchResult
from tuner.replay.rows import difference_rows

CLOCK = MonotonicClock()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A fake on a thread of its own, with pages of energy and of sources."""
    fake, ready, ended = FakeServer(Behaviour(ttft=0.005, itl=0.002), block=64), threading.Event(), threading.Event()

    async def serve() -> None:
        async with fake.serving():
            begun = CLOCK.now()
            while not ended.is_set():
                joules = (CLOCK.now() - begun) * 300
                fake.pages["/dcgm"] = f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="G"}} {joules * 1e3}\n'
                fake.pages["/metrics"] = (
                    f'vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} {fake.cached_tokens}\n'
                    f'vllm:prompt_tokens_by_source_total{{source="local_compute"}} '
                    f"{fake.prompt_tokens - fake.cached_tokens}\n"
                    "# TYPE energyopt_attributed_energy_joules_total counter\n"
                    f'energyopt_attributed_energy_joules_total{{role="prefill",phase="prefill"}} {0.6 * joules}\n'
                    f'energyopt_attributed_energy_joules_total{{role="decode",phase="decode"}} {0.3 * joules}\n'
                    f'energyopt_attributed_energy_joules_total{{role="decode",phase="idle"}} {0.1 * joules}\n'
                )
                ready.set()
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait(10)
    yield fake
    ended.set()
    thread.join(10)


def bench(server: FakeServer | str, tmp_path: Path, *words: str) -> tuple[str, str]:
    url = server if isinstance(server, str) else server.url
    arguments = ["bench", url, "--db", str(tmp_path / "r.db"), "--out", str(tmp_path / "runs"), *words]
    done = CliRunner().invoke(build_app(arguments), arguments)
    if done.exception is not None:
        raise done.exception
    return done.stdout, done.stderr


QUICK = ("--duration", "1s", "--warmup", "0s", "--concurrency", "2")


def test_a_scenario_brings_its_window_and_pools_need_a_meter() -> None:
    assert BenchRequest(target="x").duration == Seconds(30.0)
    assert BenchRequest(target="x", scenario="agentx").duration == Seconds(900.0)
    for said in (None, 20.0):
        assert parse_config(BenchRequest, {"target": "x", "scenario": "agentx", "duration": said}).duration == said
    with pytest.raises(ConfigError, match="nothing is measured"):
        parse_config(BenchRequest, {"target": "x", "prefill_devices": ("GPU-a",), "meter": "none"})


def test_a_run_is_printed_stored_and_reported(server: FakeServer, tmp_path: Path) -> None:
    out, _ = bench(server, tmp_path, *QUICK, "--energy-url", server.url + "/dcgm", "--slo", "ttft:p90<20s", "--json")
    found = json.loads(out)
    assert found["run"]["power_valid"], found["run"]["power_reasons"]
    assert found["run"]["energy"]["joules"] == pytest.approx(300 * found["run"]["window"], rel=0.25)
    assert found["joules_per"]["output_token"] == pytest.approx(
        found["run"]["energy"]["joules"] / found["run"]["output_tokens"]
    )
    assert found["goodput"] == pytest.approx(found["run"]["requests"] / found["run"]["window"])
    assert found["prefixes"]["sources"]["local_compute"] > 0
    prefill, decode = (found["pools"][name]["joules"] for name in ("prefill", "decode"))
    assert prefill == pytest.approx(0.6 * (prefill + decode)) == found["phases"]["prefill"]
    assert found["pool_joules_per"]["decode_output_token"] == decode / found["run"]["output_tokens"]
    page, document = (Path(path) for path in found["stored"]["files"])
    assert "ttft:p90&lt;20000ms" in page.read_text()
    assert "as the server accounts for them" in page.read_text()
    assert json.loads(document.read_text())["id"] == found["id"]


def test_two_runs_are_compared(server: FakeServer, tmp_path: Path) -> None:
    words = ("--workload", "synthetic", "--isl", "20", "--osl", "2", "--sessions", "20", "--once", "--meter", "none")
    bench(server, tmp_path, *words)
    server.behaviour = Behaviour(ttft=0.3, itl=0.002)
    found = json.loads(bench(server, tmp_path, *words, "--against", "latest", "--json")[0])
    slower = next(row for row in found["against"] if row["name"] == "ttft p50")
    assert slower["low"] > 1
    earlier, later = (BenchResult.model_validate_json(run.document) for run in stored(tmp_path)[::-1])
    rows = difference_rows(compare(earlier, later))
    assert next(row for row in rows if row[0] == "ttft p50")[-1] == "worse"
    for difference in compare(later, later):
        assert difference.ratio == 1.0
        assert difference.better is None


def test_a_trace_played_once_is_exact(server: FakeServer, tmp_path: Path) -> None:
    words = ("--workload", "agentic", "--scale", "64", "--sessions", "2", "--once", "--concurrency", "1")
    out, _ = bench(server, tmp_path, *words, "--endpoint", "completions", "--no-delays", "--meter", "none", "--json")
    found = json.loads(out)
    prefixes = found["prefixes"]
    assert prefixes["cached_tokens"] == prefixes["expected_tokens"] == server.cached_tokens
    assert prefixes["prompt_tokens"] == server.prompt_tokens
    assert found["run"]["requests"] == len(server.bodies)
    assert found["hit_rate"] == found["ideal_hit_rate"] > 0.5


def test_filler_is_fitted_to_the_server(server: FakeServer, tmp_path: Path) -> None:
    words = ("--workload", "synthetic", "--isl", "100", "--osl", "4", "--sessions", "5", "--once", "--meter", "none")
    found = json.loads(bench(server, tmp_path, *words, "--json")[0])
    assert found["per_request"]["input_tokens"]["p50"] == found["per_request"]["input_tokens"]["p99"] == 100


def test_an_open_loop_starts_on_time(server: FakeServer, tmp_path: Path) -> None:
    words = ("--workload", "synthetic", "--isl", "20", "--osl", "4", "--arrivals", "constant:20", "--meter", "none")
    begun = CLOCK.now()
    found = json.loads(bench(server, tmp_path, *words, "--duration", "1s", "--warmup", "0.2s", "--json")[0])
    due = 20 * (CLOCK.now() - begun) + 1
    assert 0 < found["run"]["requests"] <= due, "as many as were due, not as many as it takes"


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="names no model"):
        bench("http://127.0.0.1:9", tmp_path, "--meter", "none")


def test_what_is_wrong_is_said_before_anything_starts(server: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a file nor one of chat"):
        bench(server, tmp_path, "--workload", "nowhere.jsonl")
    with pytest.raises(ConfigError, match="no arrival times"):
        bench(server, tmp_path, "--workload", "agentic", "--arrivals", "recorded")
    with pytest.raises(NotFoundError, match="no bench run"):
        bench(server, tmp_path, "--against", "latest")
    assert server.bodies == []


def stored(tmp_path: Path) -> list[RunRecord]:
    """Newest first."""
    with open_runs(str(tmp_path / "r.db")) as store:
        return store.runs("bench")


def test_agentx_marks_a_short_run(server: FakeServer, tmp_path: Path) -> None:
    words = ("--scenario", "agentx", "--workload", "agentic", "--scale", "256", "--sessions", "4", "--meter", "none")
    found = json.loads(bench(server, tmp_path, *words, "--duration", "1s", "--concurrency", "2", "--json")[0])
    assert not found["valid"]
    assert any(reason.startswith("short: ") for reason in found["reasons"])
    assert found["run"]["failed_requests"] == 0
    with pytest.raises(ConfigError, match="AgentX fixes the load"):
        bench(server, tmp_path, *words, "--once")

"""Load generators of others against our server, unchanged and without a network, and their figures beside ours.

Each lives in an environment of its own, as both ship the same package. Name the programs to run this:
``ENERGYOPT_AIPERF=/x/bin/aiperf ENERGYOPT_AGENTX=/y/bin/agentx pytest -m bench -s tests/bench/test_harnesses.py``.
``ENERGYOPT_HARNESS_SECONDS`` (70) is how long each loads the server.

Both sides see the same requests: a tap between generator and server stamps every piece of every answer, and our
reading, our figures and our meter make of it what ``energyopt bench`` would.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from energyopt.compose.served import Served, serving
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.units import Seconds
from engine.models import open_model
from engine.tokenizer import BpeTokenizer
from telemetry.dcgm import dcgm_page
from telemetry.fake import FakeSource
from telemetry.fake_status import FakeStatus
from telemetry.sampler import Sampler
from tests.bench.figures import Report
from tuner.replay.figures import figures
from tuner.replay.page import PageMeter
from tuner.replay.result import BenchResult, Subject
from tuner.replay.tap import Tap

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
MODEL = "smollm2-135m"
SECONDS = int(os.environ.get("ENERGYOPT_HARNESS_SECONDS", "70"))
AGREE = 0.03
TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces" / "claude_code_weka" / "thin16" / "main"
SMALL = ("0026", "0057", "0103", "0174", "0460", "0613")
"""Sessions whose prompts stay below 1,400 tokens."""
AIPERF, AGENTX = os.environ.get("ENERGYOPT_AIPERF"), os.environ.get("ENERGYOPT_AGENTX")
needs_aiperf = pytest.mark.skipif(AIPERF is None, reason="ENERGYOPT_AIPERF names no program")
needs_agentx = pytest.mark.skipif(AGENTX is None, reason="ENERGYOPT_AGENTX names no program")
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no traces at {TRACES}")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    options = ("--meter", "none", "--block-size", "64", "--threads", "1", "--served-model-name", "smollm2")
    with serving(MODEL, None, None, options) as running:
        yield running


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache with the model's own tokenizer as ``local/tok``: what works for every kind of data set."""
    home = tmp_path_factory.mktemp("hf")
    opened = open_model(EngineConfig(model=MODEL))
    assert isinstance(opened.tokenizer, BpeTokenizer)
    assert opened.chat is not None
    text = opened.tokenizer.document()
    revision = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    place = home / "hub" / "models--local--tok"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision)
    snapshot = place / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_text(text)
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    settings |= {"model_max_length": 8192, "chat_template": opened.chat.source}
    (snapshot / "tokenizer_config.json").write_text(json.dumps(settings))
    return home


@dataclass
class Site:
    """A tap before the server, with a page of energy in DCGM's form and our own meter on that page."""

    url: str
    tap: Tap
    meter: PageMeter

    def result(self) -> BenchResult:
        subject = Subject(endpoint=self.url, model=MODEL, workload="harness", mode="theirs", seed=0)
        return figures(self.tap.recording(), subject, [], self.meter, datetime.now(UTC))


@contextmanager
def tapped(server: Served) -> Iterator[Site]:
    """A device that draws 300 W and 100 W more or less every ten seconds, sampled and served by our own telemetry."""
    clock = MonotonicClock()
    sampler = Sampler([FakeSource(clock, power=_watts, energy=_joules)], clock, statuses=[FakeStatus(clock)])
    sampler.start()
    tap = Tap(server.url, clock, {"/dcgm/metrics": lambda: dcgm_page(sampler, "host")})
    loop, ready, url = asyncio.new_event_loop(), threading.Event(), list[str]()
    ending = asyncio.Event()

    async def serve() -> None:
        async with tap.serving() as address:
            url.append(address)
            ready.set()
            await ending.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="tap")
    thread.start()
    assert ready.wait(30)
    meter = PageMeter(f"{url[0]}/dcgm/metrics", clock, period=Seconds(0.3))
    meter.start()
    try:
        yield Site(url[0], tap, meter)
    finally:
        meter.stop()
        loop.call_soon_threadsafe(ending.set)
        thread.join(30)
        loop.close()
        sampler.stop()


def _watts(at: float) -> float:
    return 300.0 + 100.0 * math.sin(0.2 * math.pi * at)


def _joules(at: float) -> float:
    return 300.0 * at + 100.0 * (1.0 - math.cos(0.2 * math.pi * at)) / (0.2 * math.pi)


def load(program: str, options: Sequence[str], site: Site, offline: Path, out: Path) -> dict[str, Any]:
    """Run a generator to its end; its summary."""
    command = [
        *(program, "profile", "--model", "smollm2", "--tokenizer", "local/tok", "--url", site.url),
        *("--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--ui", "none"),
        *("--extra-inputs", "ignore_eos:true", "--random-seed", "42", "--output-artifact-dir", str(out)),
        *options,
    ]
    environment = {
        "PATH": f"{Path(program).parent}:/usr/bin:/bin",
        "HOME": str(offline),
        "HF_HOME": str(offline),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS * 4 + 300, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (summary,) = out.rglob("profile_export_aiperf.json")
    return dict(json.loads(summary.read_text()))


@needs_aiperf
def test_ttft_itl_and_tokens_per_joule_agree_on_one_run(
    server: Served, offline: Path, tmp_path: Path, figure: Report
) -> None:
    assert AIPERF is not None
    options = [
        *("--concurrency", "2", "--benchmark-duration", str(SECONDS), "--benchmark-grace-period", "60"),
        *("--isl", "100", "--osl", "24"),
    ]
    with tapped(server) as site:
        options += ["--gpu-telemetry", f"{site.url}/dcgm/metrics"]
        theirs = load(AIPERF, options, site, offline, tmp_path)
        ours = site.result()
    assert ours.valid, (ours.reasons, ours.errors, [reply.error for reply in site.tap.replies if reply.error][:3])
    ttft, itl = ours.per_request["ttft"], ours.per_request["itl"]
    rows = [
        ("TTFT mean, ms", ttft.mean * 1e3, theirs["time_to_first_token"]["avg"]),
        ("TTFT p90, ms", _p90(ours, "ttft") * 1e3, theirs["time_to_first_token"]["p90"]),
        ("ITL mean, ms", itl.mean * 1e3, theirs["inter_token_latency"]["avg"]),
        ("ITL p90, ms", _p90(ours, "itl") * 1e3, theirs["inter_token_latency"]["p90"]),
        ("output tok/s", ours.rates["output_tok_s"], theirs["output_token_throughput"]["avg"]),
        ("tokens/J", ours.run.tokens_per_joule, _tag(theirs, "output_tokens_per_joule")),
    ]
    say(f"\n{ours.run.requests} requests, {ours.run.window:.1f} s, load average {os.getloadavg()[0]:.1f}")
    for name, mine, other in rows:
        assert mine is not None
        figure(f"bench beside aiperf: {name}, difference", 100 * abs(mine / other - 1), "%", "at most 3")
        say(f"{name:16} ours {mine:10.4f}  theirs {other:10.4f}  {100 * (mine / other - 1):+.2f} %")
    for name, mine, other in rows:
        assert mine == pytest.approx(other, rel=AGREE), name


def _p90(result: BenchResult, name: str) -> float:
    """Between two samples, as theirs is. Ours is the sample at that rank, which with few samples is another number."""
    return float(np.quantile(result.samples[name], 0.9))


def say(text: str) -> None:
    """The figures are what a benchmark is for."""
    print(text)  # noqa: T201


def _tag(summary: dict[str, Any], ending: str) -> float:
    """A figure of a GPU, wherever its summary has it."""
    found = [value for name, value in summary.items() if name.endswith(ending) and isinstance(value, dict)]
    assert found, sorted(summary)
    return float(found[0]["avg"])


@needs_aiperf
@needs_traces
def test_the_scenario_of_aiperf_runs_unchanged(server: Served, offline: Path, tmp_path: Path) -> None:
    assert AIPERF is not None
    options = ["--scenario", "inferencex-agentx-mvp", "--unsafe-override"]
    _replays(AIPERF, options, server, offline, tmp_path)


@needs_agentx
@needs_traces
def test_agentx_runs_unchanged(server: Served, offline: Path, tmp_path: Path) -> None:
    assert AGENTX is not None
    options = ["--scenario", "agentx", "--unsafe-override", "--warmup-requests-per-lane", "2"]
    _replays(AGENTX, options, server, offline, tmp_path)


def _replays(program: str, scenario: Sequence[str], server: Served, offline: Path, tmp_path: Path) -> None:
    """It ends well; cached tokens of usage, of our counters and of its export of them agree; and it saw our joules."""
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    for name in SMALL:
        (sessions / f"{name}.json").write_bytes((TRACES / f"trace_{name}.json").read_bytes())
    before = _hits(server)
    with tapped(server) as site:
        options = [
            *scenario,
            *("--input-file", str(sessions), "--custom-dataset-type", "weka_trace", "--concurrency", "2"),
            *("--benchmark-duration", str(SECONDS), "--benchmark-grace-period", "30"),
            *("--gpu-telemetry", f"{site.url}/dcgm/metrics", "--slice-duration", "1"),
        ]
        theirs = load(program, options, site, offline, tmp_path / "out")
        replies = site.tap.replies
    cached = sum(reply.record.cached_tokens or 0 for reply in replies)
    prompts = sum(reply.record.prompt_tokens for reply in replies)
    counted = _hits(server) - before
    share = 100 * cached / prompts
    say(f"\n{len(replies)} requests, {cached:,} of {prompts:,} prompt tokens cached ({share:.1f} %)")
    say(f"our counters rose by {counted:,.0f}; its figures:")
    for name, value in sorted(theirs.items()):
        if isinstance(value, dict) and any(word in name for word in ("cache", "joule", "request_count", "per_user")):
            say(f"  {name}: {value.get('avg')}")
    assert not [reply for reply in replies if reply.error is not None]
    assert counted >= cached > 0
    if not any(reply.left for reply in replies):  # who left at the end heard no usage
        assert cached == counted
    (export,) = (tmp_path / "out").rglob("server_metrics_export.json")
    names = set(re.findall(r'"(vllm:[a-z_]+)"', export.read_text()))
    say(f"  of our page it has {len(names)} names, such as {sorted(names)[:4]}")
    assert {"vllm:prefix_cache_hits", "vllm:prefix_cache_queries"} <= {name.removesuffix("_total") for name in names}
    assert _tag(theirs, "output_tokens_per_joule") > 0


def _hits(server: Served) -> float:
    for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines():
        if line.startswith("vllm:prefix_cache_hits_total"):
            return float(line.rsplit(" ", 1)[1])
    return 0.0

"""A whole study on a tiny real model: through the command line, killed in the middle, resumed, served."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

RUN = [sys.executable, "-P", "-c", "from energyopt.cli.main import main; main()"]
STUDY = ("--quick", "--window", "2s", "--concurrency", "2", "--meter", "estimated")
LOOSE = ("--slo", "ttft:p90<60s", "--slo", "itl:p99<60s")

pytestmark = pytest.mark.slow


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HOME": str(home), "XDG_DATA_HOME": "", "COLUMNS": "80"}
    return subprocess.Popen(
        [*RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=280)
    return out, err


def trials(home: Path) -> list[dict[str, Any]]:
    out, _ = finish(start(home, "studies", "show", "--json"))
    document: dict[str, Any] = json.loads(out)
    return [trial for trial in document["trials"] if trial["tokens_per_joule"] is not None]


def test_an_slo_that_nothing_keeps_is_its_own_outcome(tmp_path: Path, tiny_model: Path) -> None:
    impossible = ("--slo", "ttft:p90<1us")
    out, err = finish(
        process := start(tmp_path, "tune", str(tiny_model), *STUDY, *impossible, "--trials", "1", "--json")
    )
    assert process.returncode == 3, err
    document = json.loads(out)
    assert document["state"] == "no_feasible"
    assert document["recommendation"] is None
    assert "ttft:p90" in err.replace("\n", " ")


def test_killed_in_the_middle_and_resumed_it_ends_with_all_it_had_and_a_recommendation(
    tmp_path: Path, tiny_model: Path
) -> None:
    process = start(tmp_path, "tune", str(tiny_model), *STUDY, *LOOSE, "--trials", "2", "--pairs", "1")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("trial 1 ("):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = trials(tmp_path)
    assert [trial["trial"] for trial in before] == [0]
    out, err = finish(resumed := start(tmp_path, "studies", "resume"))
    assert resumed.returncode == 0, err
    after = trials(tmp_path)
    assert after[0] == before[0] | {"on_front": after[0]["on_front"]}
    assert [trial["trial"] for trial in after[:2]] == [0, 1]
    for piece in ("baseline", "tokens/J", "estimated", "energyopt serve", "report.html", "pareto.png", "manifest.json"):
        assert piece in out
    assert max(len(line) for line in out.splitlines() if "/" not in line) <= 90
    folder = next((tmp_path / ".local/share/energyopt/studies").iterdir())
    assert "estimated" in (folder / "report.html").read_text(encoding="utf-8")
    assert (folder / "pareto.png").read_bytes().startswith(b"\x89PNG")


def _wait_until_healthy(url: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=60).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not become healthy")


@pytest.fixture
def server(tmp_path: Path, tiny_model: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = start(tmp_path, "serve", str(tiny_model), "--port", str(port), "--meter", "estimated")
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err


def test_serve_answers_with_joules_and_metrics(server: str, tiny_model: Path) -> None:
    body = {"model": str(tiny_model), "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}
    reply = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=120).json()
    usage = reply["usage"]
    assert usage["completion_tokens"] <= 16
    assert usage["energy_joules"] > 0
    assert usage["energy_source"] == "estimated"
    metrics = httpx.get(f"{server}/metrics", timeout=30).text
    assert "energyopt_cpu_energy_joules_total" in metrics
    assert "vllm:generation_tokens_total" in metrics


def test_a_port_in_use_is_refused_before_the_model_is_loaded(server: str, tmp_path: Path, tiny_model: Path) -> None:
    port = server.rsplit(":", 1)[1]
    _, err = finish(second := start(tmp_path, "serve", str(tiny_model), "--port", port))
    assert second.returncode == 2
    assert port in err
    assert "loading" not in err

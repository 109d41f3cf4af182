"""The whole stack, every part of it real but the GPUs: agent over a stub driver, server under load, Prometheus, boards.

What a panel shows is compared with what the stub's boards used and with what the client was sent.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboards.shipped import shipped_boards

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "tests" / "telemetry" / "stubs"
PROGRAM = "import sys; from energyopt.cli.main import main; sys.argv[0] = 'energyopt'; main()"
WINDOW = 20
GPUS, WATTS = 2, 300.0
"""Boards of the stub, each at a constant power."""
VARIABLES = {
    "__rate_interval": f"{WINDOW}s",
    "__range": f"{WINDOW}s",
    "budget": "1000",
    "price": "0.25",
} | dict.fromkeys(("cluster", "job", "host", "gpu", "model"), ".*")
MAKE_STATE = """
import sys, time, pathlib, nvmlstub
state = nvmlstub.create(pathlib.Path(sys.argv[1]), 2)
state.now_ns = 0  # the stub's clock is the machine's from now on
for gpu in state.gpus[:2]:
    gpu.since_ns = time.monotonic_ns()
"""


@dataclass
class Client:
    """Asks for short answers without a pause, and counts the tokens that it was told of."""

    url: str
    model: str
    prompt: int = 0
    output: int = 0
    requests: int = 0

    def run(self, ended: threading.Event) -> None:
        with httpx.Client(timeout=60) as client:
            while not ended.wait(0.05):
                text = f"question number {self.requests}"
                body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
                usage = client.post(f"{self.url}/v1/chat/completions", json=body).json()["usage"]
                self.prompt += usage["prompt_tokens"]
                self.output += usage["completion_tokens"]
                self.requests += 1


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a host with the stub's GPUs."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stub driver cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    flags = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    target = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, *flags, "-o", target, str(STUBS / "nvmlstub.c")], check=True, timeout=60)
    paths = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{STUBS}"}
    found = {**os.environ, **paths, "NVMLSTUB_STATE": str(folder / "state")}
    subprocess.run([sys.executable, "-c", MAKE_STATE, found["NVMLSTUB_STATE"]], env=found, check=True, timeout=60)
    return found


@contextmanager
def running(environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        try:
            yield one
        finally:
            one.terminate()
            _, err = one.communicate(timeout=60)
            assert one.returncode == 0, err


def document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first JSON document that a process prints."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            return dict(json.loads("".join(lines)))
    raise AssertionError("".join(lines))


def until_healthy(url: str, process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        assert process.poll() is None, "the server ended"
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the server did not become healthy")


class Boards:
    """The shipped panels, asked of a server."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=20)

    def close(self) -> None:
        self._client.close()

    def query(self, text: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Series and their values, now or ``at`` a Unix time."""
        reply = self._client.get("query", params={"query": text, "time": f"{at or time.time():.3f}"})
        assert reply.status_code == 200, reply.text
        return [(item["metric"], float(item["value"][1])) for item in reply.json()["data"]["result"]]

    def panel(self, board: int, title: str) -> list[tuple[dict[str, str], float]]:
        found = next(one for one in shipped_boards("postgresql")[board]["panels"] if one["title"] == title)
        queries = [re.sub(r"\$\{?(\w+)\}?", lambda m: VARIABLES[m[1]], target["expr"]) for target in found["targets"]]
        return [item for text in queries for item in self.query(text)]


@dataclass
class Stack:
    """``loaded`` is a moment under load, in Unix time."""

    boards: Boards
    client: Client
    loaded: float


@pytest.fixture(scope="module")
def stack(
    nvml: dict[str, str],
    tiny_model: Path,
    start_prometheus: Callable[..., AbstractContextManager[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """All of it, after a whole window of load, and with the load over."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    url, model = f"http://127.0.0.1:{port}", str(tiny_model)
    ended = threading.Event()
    with ExitStack() as parts:
        agent = document(parts.enter_context(running(nvml, "agent", "--port", "0", "--json")))
        served = parts.enter_context(
            running(dict(os.environ), "serve", model, "--port", str(port), "--meter", "estimated")
        )
        until_healthy(url, served)
        jobs = {"agent": int(agent["url"].rsplit(":", 1)[1]), "serve": port}
        server = parts.enter_context(start_prometheus(tmp_path_factory.mktemp("prometheus"), jobs))
        client = Client(url, model)
        load = threading.Thread(target=client.run, args=(ended,))
        load.start()
        time.sleep(WINDOW + 6)
        loaded = time.time()
        ended.set()
        load.join(60)
        time.sleep(5)  # two scrapes, so that the last request is in
        boards = Boards(server)
        yield Stack(boards, client, loaded)
        boards.close()


@pytest.mark.slow
def test_panels_show_what_the_boards_of_the_stub_draw(stack: Stack) -> None:
    by_gpu = stack.boards.panel(1, "Energy in range by GPU")
    assert [joules for _, joules in by_gpu] == pytest.approx([WATTS * WINDOW / 3600] * GPUS, rel=0.02)
    drawn = stack.boards.panel(1, "Power: reading against counter")
    read = [watts for labels, watts in drawn if (labels.get("kind"), labels.get("scope")) == ("instant", "gpu")]
    counted = [watts for labels, watts in drawn if "kind" not in labels]
    assert read == pytest.approx([WATTS] * GPUS, rel=0.02)
    assert counted == pytest.approx([WATTS] * GPUS, rel=0.02)
    limits = stack.boards.panel(1, "Power against its limits")
    assert {labels["kind"] for labels, _ in limits} >= {"requested", "enforced", "default", "instant"}
    total = sum(watts for labels, watts in stack.boards.panel(0, "Power by host") if _agent(labels, stack))
    assert total == pytest.approx(WATTS * GPUS, rel=0.02)


@pytest.mark.slow
def test_panels_show_what_the_client_was_sent(stack: Stack) -> None:
    sums = {labels["kind"]: value for labels, value in stack.boards.query("sum by (kind) (energyopt_tokens_total)")}
    assert sums == {"prompt": stack.client.prompt, "output": stack.client.output}
    assert stack.client.requests > 20
    finished = stack.boards.query('sum(energyopt_requests_total{finish_reason!="abort"})')
    assert finished[0][1] == stack.client.requests


@pytest.mark.slow
def test_no_joule_of_the_sensor_is_lost_on_the_way_to_the_account(stack: Stack) -> None:
    """Under load: time without a step is booked as idle only half a minute later, since a step might still run."""
    kinds = ("cpu_energy", "attributed_energy")
    sums = [f'sum(energyopt_{kind}_joules_total{{job="serve"}})' for kind in kinds]
    sensor, account = (stack.boards.query(text, stack.loaded)[0][1] for text in sums)
    assert sensor > 0
    assert account == pytest.approx(sensor, rel=0.02)
    labels = {labels["source"] for labels, _ in stack.boards.query('energyopt_cpu_energy_joules_total{job="serve"}')}
    assert labels == {"estimated"}


def _agent(labels: dict[str, str], stack: Stack) -> bool:
    """Whether the series is of the agent's process; the boards' sums keep the instance only."""
    return labels["instance"] == stack.boards.query('energyopt_gpu_up{job="agent"}')[0][0]["instance"]

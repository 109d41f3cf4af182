"""The boards as they ship and as generated now, a Grafana to send them to, a Prometheus to feed them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import yaml

from dashboards.catalog import PLUGINS
from dashboards.double.server import FakeGrafana
from dashboards.rule_files import as_yaml, prometheus_rules
from dashboards.shipped import shipped_boards


@pytest.fixture(scope="session")
def generated() -> dict[str, str]:
    """Every generated file, made anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the SDK warns that its classic model has a successor
        from dashboards.generate import texts
    return texts()


@pytest.fixture(scope="session", params=list(PLUGINS))
def boards(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The shipped boards, of either kind of database."""
    return shipped_boards(request.param)


@pytest.fixture
def fake() -> FakeGrafana:
    return FakeGrafana()


@pytest.fixture
def url(fake: FakeGrafana) -> Iterator[str]:
    """The fake on a loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(fake.app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture(scope="session")
def start_prometheus() -> Callable[[Path, Mapping[str, int]], AbstractContextManager[int]]:
    """Runs a real server in a folder, which scrapes loopback ports by job every two seconds; yields its own port."""
    binary = shutil.which("prometheus")
    if binary is None:
        reason = "no prometheus: install the package prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    @contextmanager
    def start(folder: Path, jobs: Mapping[str, int]) -> Iterator[int]:
        port = _configure(folder, jobs)
        command = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("w") as log:
            running = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            _await_ready(port, folder / "log")
            yield port
        finally:
            running.terminate()
            running.wait(20)

    return start


def _configure(folder: Path, jobs: Mapping[str, int]) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    scrapes = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{target}"], "labels": {"cluster": "c"}}]}
        for job, target in jobs.items()
    ]
    whole = {"global": {"scrape_interval": "2s"}, "scrape_configs": scrapes, "rule_files": ["rules.yml"]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(whole))
    (folder / "rules.yml").write_text(as_yaml(prometheus_rules()))
    return port


def _await_ready(port: int, log: Path) -> None:
    for _ in range(300):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/-/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    pytest.fail(log.read_text()[-2000:])

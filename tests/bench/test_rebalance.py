"""Roles follow the load: 1 prefill and 2 decode engines become 2 and 1 by what is measured, and no request is lost."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.bench.figures import Report
from tests.engine.model.tiny import SPREAD, save_tiny

pytestmark = [pytest.mark.bench, pytest.mark.timeout(400)]
PROGRAM = "from energyopt.cli.main import main; main()"
OPTIONS = (
    *("--port", "0", "--device", "cpu", "--dtype", "float32", "--threads", "2", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "256", "--kv-cache-memory-bytes", "16MiB"),
    *("--prefill", "1", "--decode", "2", "--rebalance", "auto"),
)
CLIENTS, PROMPTS, PATIENCE, AFTER = 6, 12, 180.0, 5.0
"""``AFTER`` seconds of the same load once the roles have changed."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    save_tiny(directory, **SPREAD, num_key_value_heads=4, max_position_embeddings=2048)
    return directory


@pytest.fixture
def url(model: Path) -> Iterator[str]:
    command = [sys.executable, "-P", "-c", PROGRAM, "serve", str(model), *OPTIONS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        found = (re.search(r"serving on (http://\S+)/v1", line) for line in process.stderr)
        try:
            yield next(match.group(1) for match in found if match is not None)
        finally:
            process.terminate()
            process.stderr.read()


class Load:
    """Long prompts and short answers, which a prefill pool of one cannot keep up with."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.texts: dict[int, set[str]] = {}
        self.answered = 0
        self._lock = threading.Lock()

    def stop(self) -> None:
        self._stop.set()

    def run(self, client: int) -> None:
        """Until stopped. Raises for an answer that is no answer."""
        with httpx.Client(base_url=self._url, timeout=200, trust_env=False) as http:
            number = client
            while not self._stop.is_set():
                number = (number + 7) % PROMPTS
                if number == 0:
                    http.post("/reset_prefix_cache")
                body = {"prompt": f"{number} " * 300, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
                reply = http.post("/v1/completions", json=body)
                assert reply.status_code == 200, reply.text
                with self._lock:
                    self.answered += 1
                    self.texts.setdefault(number, set()).add(reply.json()["choices"][0]["text"])


def sizes(url: str) -> tuple[int, int]:
    state = httpx.get(f"{url}/admin/pools", timeout=60, trust_env=False).json()
    return state["prefill"], state["decode"]


def test_the_pool_that_everybody_waits_for_grows_without_a_lost_request(url: str, figure: Report) -> None:
    load, start = Load(url), time.monotonic()
    assert sizes(url) == (1, 2)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(load.run, client) for client in range(CLIENTS)]
        try:
            while sizes(url) != (2, 1):
                assert time.monotonic() - start < PATIENCE, "the roles did not change"
                time.sleep(1.0)
            took = time.monotonic() - start
            time.sleep(AFTER)
        finally:
            load.stop()
        for client in clients:
            client.result()
    assert all(len(texts) == 1 for texts in load.texts.values()), "the same prompt, the same text"
    figure("rebalance: 1P2D to 2P1D", took, "s", f"under {PATIENCE:g}")
    sys.stdout.write(f"\n1P2D to 2P1D after {took:.0f} s; {load.answered} requests answered, none lost\n")

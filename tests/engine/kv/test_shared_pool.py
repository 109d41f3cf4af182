"""Two engine processes on one Mooncake pool: hits of the other's prefixes, and its death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.kv.conftest import WholeEngine
    from tests.mooncake import MooncakePool

_PEER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("kv_conftest", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["kv_conftest"] = module
spec.loader.exec_module(module)
engine = module.WholeEngine(sys.argv[2], {"kind": "shared", "bytes_per_host": 1 << 26, "path": sys.argv[3]})
for line in sys.stdin:
    text = engine.ask(json.loads(line))
    engine.settle()
    print(json.dumps([text, engine.records[-1].cached_by_tier]), flush=True)
"""


class Peer:
    """Another engine, in a process of its own."""

    def __init__(self, model: Path, url: str) -> None:
        command = [sys.executable, "-c", _PEER, str(Path(__file__).with_name("conftest.py")), str(model), url]
        # LMCache #2136, #2979: names may not depend on Python's own hash, which differs between processes
        environment = {**os.environ, "PYTHONHASHSEED": "4711"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, prompt: list[int]) -> tuple[str, dict[str, int]]:
        """Its text, and where the prefix came from."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(prompt), file=self.process.stdin, flush=True)
        text, cached = json.loads(self.process.stdout.readline())
        return text, cached

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def peer(tiny_model: Path, mooncake_pool: MooncakePool) -> Iterator[Peer]:
    made = Peer(tiny_model, mooncake_pool.url)
    yield made
    if made.process.poll() is None:
        made.kill()


def test_engines_hit_each_others_prefixes_and_outlive_each_other(
    tiny_model: Path, mooncake_pool: MooncakePool, peer: Peer, whole_engine: Callable[..., WholeEngine]
) -> None:
    shared = {"kind": "shared", "bytes_per_host": 1 << 26, "path": mooncake_pool.url}
    engine = whole_engine(str(tiny_model), shared)
    ours, theirs, lost = ([start + at % 50 for at in range(100)] for start in (30, 40, 50))
    (their_text, _), (lost_text, _) = peer.ask(theirs), peer.ask(lost)
    assert engine.ask(theirs) == their_text
    assert engine.records[-1].cached_by_tier == {"shared": 96}
    our_text = engine.ask(ours)
    engine.settle()
    assert peer.ask(ours) == (our_text, {"shared": 96})
    peer.kill()
    assert engine.ask(lost) == lost_text, "what a dead engine held is computed"
    assert engine.front.alive


def test_the_death_of_the_master_is_no_error_to_a_client(
    tiny_model: Path, mooncake_pool: MooncakePool, whole_engine: Callable[..., WholeEngine]
) -> None:
    shared = {"kind": "shared", "bytes_per_host": 1 << 26, "path": mooncake_pool.url}
    engine = whole_engine(str(tiny_model), shared)
    prompts = [[start + at % 60 for at in range(100)] for start in (60, 61, 62)]
    texts = [engine.ask(prompt) for prompt in prompts]
    engine.settle()
    engine.reset("device")
    mooncake_pool.kill()
    try:
        assert [engine.ask(prompt) for prompt in prompts] == texts
        assert sum(engine.count("shared").failures.values()) > 0
    finally:
        mooncake_pool.start()

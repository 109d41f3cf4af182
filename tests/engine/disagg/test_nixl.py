"""Memory that another process reads by NIXL; what is asked of every way of blocks is in ``test_sources``."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import KvTransferConfig
from energyopt.core.errors import ConfigError
from engine.disagg.assembly import READ, open_exchange
from engine.disagg.errors import HandOverError, Reason
from engine.disagg.nixl import NixlAgent
from tests.engine.disagg.conftest import ByteMover

needs_nixl = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="the nixl package is optional")
LENDS = """
import sys
from engine.disagg.nixl import NixlAgent
agent, memory = NixlAgent("lends"), memoryview(bytearray(range(256)) * 4096)
print(agent.register(memory).hex(), flush=True)
import select
while not select.select([sys.stdin], [], [], 1e-4)[0]:
    agent.progress()
agent.withdraw(memory)
"""


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'energyopt\[nixl\]': No module named 'nixl'"):
        NixlAgent("x")


@needs_nixl
def test_another_process_memory_is_read_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    command = [sys.executable, "-c", LENDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            lines = (line.strip() for line in child.stdout)
            ticket = next(bytes.fromhex(line) for line in lines if len(line) > 64 and " " not in line)
            agent, memory = NixlAgent("takes"), memoryview(bytearray(1 << 20))
            agent.register(memory)
            agent.read(ticket, [memory[at : at + 4096] for at in range(0, 1 << 20, 4096)], 30.0)
            assert memory == bytes(range(256)) * 4096
            with pytest.raises(HandOverError, match="has 1048576 bytes, fewer than the blocks") as error:
                agent.read(ticket, [memory, memory[:1]], 1.0)
            assert error.value.reason is Reason.PROTOCOL
            agent.forget(ticket)
            agent.withdraw(memory)
        finally:
            child.kill()


@needs_nixl
def test_what_is_no_ticket_reads_nothing() -> None:
    agent, memory = NixlAgent("takes"), memoryview(bytearray(64))
    for ticket in (b"", bytes(16), bytes([64, *bytes(7), 64, *bytes(7)]) + b"nonsense"):
        with pytest.raises(HandOverError):
            agent.read(ticket, [memory], 0.1)


@needs_nixl
def test_an_engine_offers_memory_to_be_read() -> None:
    exchange = open_exchange(KvTransferConfig(transport="nixl"), ByteMover(), MonotonicClock())
    try:
        assert exchange.lend(((1, 2),), 8, bytes(16)).mode == READ
    finally:
        exchange.close()

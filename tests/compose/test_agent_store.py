"""An agent that was given a database fills it with what its sensors said."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from energyopt.compose.agent import AgentRequest, AgentState, run_agent
from energyopt.core.results import Source
from energyopt.store.energy_history import EnergyHistory, EnergyPoint
from energyopt.store.energy_store import open_energy_history
from energyopt.store.energy_writer import FLUSH_EVERY
from telemetry.agent import ROUND

STAT = "cpu  100 0 100 {idle} 0 0 0 0 0 0\n"
CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\n"


def kept(history: EnergyHistory) -> list[EnergyPoint]:
    now = datetime.now(UTC)
    points = history.energy(now - timedelta(minutes=1), now, resolution=1)
    return [point for point in points if point.device == "cpu:0"]


def test_a_second_is_handed_over_as_often_as_it_is_written() -> None:
    assert ROUND <= FLUSH_EVERY


def test_energy_is_kept(tmp_path: Path) -> None:
    proc = tmp_path / "host" / "proc"
    proc.mkdir(parents=True)
    (proc / "stat").write_text(STAT.format(idle=1), encoding="utf-8")
    (proc / "cpuinfo").write_text(CPUINFO, encoding="utf-8")
    db = str(tmp_path / "energy.db")
    request = AgentRequest(port=0, root=tmp_path / "host", estimate=True, db=db)
    stop, said, states = threading.Event(), list[str](), list[AgentState]()
    agent = threading.Thread(
        target=run_agent, args=(request, stop), kwargs={"notify": said.append, "on_ready": states.append}
    )
    agent.start()
    deadline = time.monotonic() + 30.0
    while not states and time.monotonic() < deadline:
        time.sleep(0.05)
    history = open_energy_history(db)
    while not (before := kept(history)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert before, "what is kept only at the end is lost by a kill"
    stop.set()
    agent.join(30.0)
    assert f"energy is kept in {db}" in said
    measured = kept(history)
    assert sum(point.covered for point in measured) > sum(point.covered for point in before)
    assert {point.sources for point in measured} == {(Source.ESTIMATED,)}
    assert all(point.joules > 0 for point in measured)

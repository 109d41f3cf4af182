"""An agent that was given a database fills it with what its sensors said."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from energyopt.compose.agent import AgentRequest, AgentState, run_agent
from energyopt.core.results import Source
from energyopt.store.energy_store import open_energy_history

STAT = "cpu  100 0 100 {idle} 0 0 0 0 0 0\n"
CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\n"


def test_energy_is_kept(tmp_path: Path) -> None:
    proc = tmp_path / "host" / "proc"
    proc.mkdir(parents=True)
    (proc / "stat").write_text(STAT.format(idle=1), encoding="utf-8")
    (proc / "cpuinfo").write_text(CPUINFO, encoding="utf-8")
    db = str(tmp_path / "energy.db")
    request = AgentRequest(port=0, root=tmp_path / "host", estimate=True, db=db)
    stop, said, states = threading.Event(), list[str](), list[AgentState]()
    threading.Timer(3.5, stop.set).start()
    run_agent(request, stop, notify=said.append, on_ready=states.append)
    assert f"energy is kept in {db}" in said
    now = datetime.now(UTC)
    points = open_energy_history(db).energy(now - timedelta(minutes=1), now, resolution=1)
    measured = [point for point in points if point.device == "cpu:0"]
    assert sum(point.covered for point in measured) > 2.0
    assert {point.sources for point in measured} == {(Source.ESTIMATED,)}
    assert all(point.joules > 0 for point in measured)

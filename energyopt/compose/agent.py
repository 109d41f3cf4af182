"""Builds the agent of a host: its sensors, its pages, and what takes its energy away."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from prometheus_client import make_wsgi_app
from pydantic import Field

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import Config
from energyopt.core.units import Seconds
from telemetry.agent import PERIOD, Agent
from telemetry.agent_server import AgentServer, App, text_page
from telemetry.dcgm import dcgm_page
from telemetry.host import HostScan
from telemetry.ports import EnergySink
from telemetry.sink_metrics import StoreCollector

if TYPE_CHECKING:
    from energyopt.store.energy_writer import SqlEnergyWriter

PORT = 9401
"""Beside dcgm-exporter's 9400."""


class AgentRequest(Config):
    """What ``energyopt agent`` was asked. ``db`` is where energy is kept, by seconds and by minutes, for so long."""

    host: str = "127.0.0.1"
    port: int = Field(PORT, ge=0, le=65535)
    period: Seconds = Field(PERIOD, ge=0.02, le=10.0)
    dcgm: bool = False
    estimate: bool = False
    root: Path = Path("/")
    db: str | None = None
    keep_seconds: Seconds = Field(Seconds(7 * 86_400.0), ge=60)
    keep_minutes: Seconds = Field(Seconds(400 * 86_400.0), ge=3600)


class AgentState(Config):
    """What a started agent is: where it answers and what it measures."""

    url: str
    pages: tuple[str, ...]
    sensors: tuple[str, ...]
    devices: tuple[str, ...]


def run_agent(
    request: AgentRequest,
    stop: Event,
    *,
    sink: EnergySink | None = None,
    notify: Callable[[str], None],
    on_ready: Callable[[AgentState], None],
) -> None:
    """Sample and serve until ``stop`` is set; then hand over what is settled and let go of every driver.

    Raises ConfigError if it cannot listen, StoreError if the database cannot be used: before a driver is opened.
    """
    clock = MonotonicClock()
    scan = HostScan(clock, root=request.root, estimate=request.estimate)
    writer = _writer(request, clock, notify)
    agent = Agent(scan, clock, sink or writer, period=request.period, notify=notify)
    if writer is not None:
        agent.registry.register(StoreCollector(lambda: writer.stats))
    pages = _pages(agent, request.dcgm)
    try:
        server = AgentServer(request.host, request.port, pages)
    except BaseException:
        agent.stop()
        raise
    try:
        agent.start()
        server.start()
        sampler = agent.sampler
        sensors = tuple(f"{one.curve.sensor.device} ({one.curve.sensor.scope})" for one in sampler.channels)
        devices = tuple(f"{one.info.device} {one.info.model}" for one in sampler.devices)
        on_ready(AgentState(url=server.url, pages=tuple(pages), sensors=sensors, devices=devices))
        stop.wait()
    finally:
        server.stop()
        agent.stop()


def _writer(request: AgentRequest, clock: Clock, notify: Callable[[str], None]) -> SqlEnergyWriter | None:
    if request.db is None:
        return None
    # Loaded only here: an agent without a database takes half the memory and half the time to start.
    module = importlib.import_module("energyopt.compose.energy_sink")
    writer: SqlEnergyWriter = module.open_sink(request.db, clock, request.keep_seconds, request.keep_minutes)
    notify(f"energy is kept in {writer.name}")
    return writer


def _pages(agent: Agent, dcgm: bool) -> dict[str, App]:
    pages: dict[str, App] = {"/metrics": make_wsgi_app(agent.registry), "/healthz": text_page(lambda: "ok\n")}
    if dcgm:
        hostname = socket.gethostname()
        pages["/dcgm/metrics"] = text_page(lambda: dcgm_page(agent.sampler, hostname))
    return pages

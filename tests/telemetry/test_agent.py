"""The agent: finds sensors as they come, hands energy on, serves its pages, and ends when told."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import make_wsgi_app
from prometheus_client.parser import text_string_to_metric_families as parse_text

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.results import Scope
from energyopt.core.units import Seconds
from telemetry.agent import SCAN_EVERY, Agent
from telemetry.agent_metrics import CollectorHealth
from telemetry.agent_server import MAX_CONNECTIONS, AgentServer, text_page
from telemetry.catalog import CATALOG
from telemetry.dcgm import dcgm_page
from telemetry.detect import Detection
from telemetry.fake import FakeSource
from telemetry.fake_status import FakeStatus
from telemetry.host import HostScan
from telemetry.ports import EnergyChunk, SensorId
from telemetry.sampler import Sampler

ROOT = Path(__file__).parents[2]


class FakeScan(HostScan):
    """Finds what a test puts into ``coming``, once."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.coming: list[Detection] = []
        self.closed = False

    def scan(self) -> Detection:
        return self.coming.pop(0) if self.coming else Detection((), ("nothing new",))

    def health(self) -> tuple[CollectorHealth, ...]:
        return (CollectorHealth("nvml", True),)

    def close(self) -> None:
        super().close()
        self.closed = True


class ListSink:
    """Keeps what it is given, or refuses it."""

    def __init__(self) -> None:
        self.chunks: list[EnergyChunk] = []
        self.refuses = False
        self.closed = 0

    def accept(self, chunks: Sequence[EnergyChunk]) -> None:
        if self.refuses:
            raise StoreError("The queue is full.")
        self.chunks += chunks

    def close(self) -> None:
        self.closed += 1


def run(agent: Agent, clock: FakeClock, seconds: float) -> None:
    for index in range(round(seconds / 0.05)):
        clock.advance(0.05)
        agent.sampler.step()
        if index % 20 == 19:
            agent.step()


def test_energy_reaches_the_sink_whole_and_late_sensors_are_taken_on() -> None:
    clock, sink = FakeClock(), ListSink()
    scan, told = FakeScan(clock), list[str]()
    late = FakeSource(clock, sensor=SensorId("GPU-late", Scope.GPU))
    scan.coming = [Detection((FakeSource(clock),), ("GPU-fake is measured.",), (FakeStatus(clock),))]
    agent = Agent(scan, clock, sink, period=Seconds(0.1), notify=told.append)
    run(agent, clock, 5.0)
    scan.coming = [Detection((late,), ("GPU-late is measured.",))]
    run(agent, clock, SCAN_EVERY + 5.0)
    agent.stop()
    agent.stop()
    totals = {channel.curve.sensor.device: channel.curve.total for channel in agent.sampler.channels}
    assert set(totals) == {"GPU-fake", "GPU-late"}
    for device, total in totals.items():
        handed = sum(chunk.joules for chunk in sink.chunks if chunk.sensor.device == device)
        assert handed == pytest.approx(total)
    assert sink.closed == 1
    assert scan.closed
    assert late.closed
    assert agent.chunks.accepted == len(sink.chunks)
    assert sorted(set(told)) == sorted(told)


def test_a_sink_that_refuses_costs_its_pieces_only() -> None:
    clock, sink = FakeClock(), ListSink()
    scan = FakeScan(clock)
    scan.coming = [Detection((FakeSource(clock),), ())]
    agent = Agent(scan, clock, sink)
    run(agent, clock, 3.0)
    sink.refuses = True
    run(agent, clock, 3.0)
    sink.refuses = False
    run(agent, clock, 3.0)
    assert agent.chunks.lost == 3
    assert agent.chunks.accepted == len(sink.chunks) >= 5


def test_ten_times_the_load_loses_no_sample_and_leaves_no_queue() -> None:
    """8 sensors at 100 Hz for half a minute of virtual time; the hour is in tests/bench."""
    clock, sink = FakeClock(), ListSink()
    scan = FakeScan(clock)
    sources = [FakeSource(clock, sensor=SensorId(f"GPU-{i}", Scope.GPU), tick=0.1) for i in range(8)]
    scan.coming = [Detection(tuple(sources), ())]
    agent = Agent(scan, clock, sink, period=Seconds(0.01))
    for _ in range(30):
        for _ in range(100):
            clock.advance(0.01)
            agent.sampler.step()
        agent.step()
        settled = [channel.curve.coverage for channel in agent.sampler.channels]
        newest = {chunk.sensor: chunk.end for chunk in sink.chunks}
        behind = [
            span[1] - newest.get(c.curve.sensor, span[0])
            for c, span in zip(agent.sampler.channels, settled, strict=True)
            if span
        ]
        assert max(behind, default=0.0) < 1.1
    assert all(channel.overruns <= 1 and channel.errors == 0 for channel in agent.sampler.channels)
    assert all(source.reads >= 2890 for source in sources)
    agent.stop()
    totals = [channel.curve.total or 0.0 for channel in agent.sampler.channels]
    assert sum(chunk.joules for chunk in sink.chunks) == pytest.approx(sum(totals))


@contextmanager
def serving(pages: dict[str, Any]) -> Iterator[str]:
    server = AgentServer("127.0.0.1", 0, pages)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def fetch(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class TestServer:
    def test_pages_and_refusals(self) -> None:
        with serving({"/healthz": text_page(lambda: "ok\n")}) as url:
            assert fetch(f"{url}/healthz") == (200, "ok\n")
            assert fetch(f"{url}/other")[0] == 404
            assert fetch(f"{url}/healthz", "POST")[0] == 405
            assert fetch(f"{url}/healthz", "HEAD")[0] == 200

    def test_clients_that_say_nothing_take_no_more_than_their_places(self) -> None:
        with serving({"/healthz": text_page(lambda: "ok\n")}) as url:
            port = int(url.rpartition(":")[2])
            idle = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(MAX_CONNECTIONS)]
            time.sleep(0.3)
            with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
                fetch(f"{url}/healthz")
            for one in idle:
                one.close()
            assert eventually(lambda: fetch(f"{url}/healthz")[0] == 200)

    def test_a_port_in_use_and_a_foreign_host_are_refused_in_words(self) -> None:
        with serving({}) as url:
            port = int(url.rpartition(":")[2])
            with pytest.raises(ConfigError, match=f"Port {port} on '127.0.0.1' is in use"):
                AgentServer("127.0.0.1", port, {})
        with pytest.raises(ConfigError, match="cannot be resolved"):
            AgentServer("no such host", 0, {})
        with pytest.raises(ConfigError, match="Cannot listen"):
            AgentServer("192.0.2.1", 0, {})

    def test_it_listens_on_ipv6_too(self) -> None:
        server = AgentServer("::1", 0, {"/healthz": text_page(lambda: "ok\n")})
        server.start()
        assert fetch(f"{server.url}/healthz") == (200, "ok\n")
        server.stop()


def test_dcgm_page_speaks_its_names_and_units() -> None:
    """Millijoules, megahertz, nanoseconds; absent where unknown; nothing of AMD."""
    clock = FakeClock()
    sampler = Sampler([FakeSource(clock)], clock, statuses=[FakeStatus(clock)])
    for _ in range(100):
        clock.advance(0.05)
        sampler.step()
    page = dcgm_page(sampler, 'host"1')
    found = {family.name: family for family in parse_text(page)}
    energy = found["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]
    total = sampler.channels[0].curve.total
    assert total is not None
    assert energy.samples[0].value == pytest.approx(total * 1e3)
    assert energy.samples[0].labels == {
        "gpu": "0",
        "UUID": "GPU-fake",
        "pci_bus_id": "00000000:01:00.0",
        "device": "nvidia0",
        "modelName": "Fake H100",
        "Hostname": 'host"1',
    }
    values = {name: family.samples[0].value for name, family in found.items()}
    assert values["DCGM_FI_DEV_POWER_USAGE"] == 300.0
    assert values["DCGM_FI_DEV_SM_CLOCK"] == 1410.0
    assert values["DCGM_FI_DEV_GPU_UTIL"] == 90.0
    assert values["DCGM_FI_DEV_ENFORCED_POWER_LIMIT"] == 450.0
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in values
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total" not in page


def eventually(attempt: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if attempt():
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


@contextmanager
def agent_process(environment: dict[str, str], *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The real command; yields it with the document that it prints once it serves."""
    program = "import sys; from energyopt.cli.main import main; sys.argv[0] = 'energyopt'; main()"
    command = [sys.executable, "-c", program, "agent", "--port", "0", "--json", *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line == "}\n":
                    break
            yield process, json.loads("".join(lines))
        finally:
            process.kill()


@pytest.fixture
def both_vendors(
    stub_environment: dict[str, str], state_path: Path, amd_machine: Callable[[int], Any], tmp_path: Path
) -> dict[str, str]:
    """An environment whose NVIDIA and AMD drivers are the stubs, in real time; two GPUs of each."""
    code = f"import nvmlstub; s = nvmlstub.create(__import__('pathlib').Path({str(state_path)!r}), 2); s.now_ns = 0"
    real = "import time\nfor g in s.gpus[:2]: g.since_ns = time.monotonic_ns()"
    subprocess.run([sys.executable, "-c", f"{code}\n{real}"], env=stub_environment, check=True)
    amd_machine(2)
    for path in ("dev/kfd", "sys/module/amdgpu/version"):
        (tmp_path / "host" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "host" / path).touch()
    keep = {name: os.environ[name] for name in ("ROCM_PATH", "AMDSTUB_STATE")}
    return {**stub_environment, **keep, "NVMLSTUB_STATE": str(state_path)}


def test_both_vendors_on_one_host_and_promtool_and_a_clean_end(both_vendors: dict[str, str], tmp_path: Path) -> None:
    """The whole command over both stubs: every GPU measured, the page checked, SIGTERM obeyed, no child left."""
    with agent_process(both_vendors, "--root", str(tmp_path / "host"), "--dcgm-compat") as (process, told):
        assert len(told["sensors"]) == 4
        assert len([one for one in told["sensors"] if one.startswith("AMD-")]) == 2
        assert told["url"].startswith("http://127.0.0.1:")
        time.sleep(2.5)
        status, page = fetch(f"{told['url']}/metrics")
        assert status == 200
        check_page(page)
        power = dict(
            re.findall(r'energyopt_gpu_power_watts\{gpu_uuid="(\S+?)",kind="instant",scope="\w+"\} (\S+)', page)
        )
        assert {device[:12]: float(watts) for device, watts in power.items()} == {
            "GPU-00000000": 300.0,
            "GPU-00000001": 300.0,
            "AMD-00000000": 400.0,
        }
        assert len(power) == 4
        assert 'energyopt_collector_up{collector="nvml"} 1.0' in page
        assert 'energyopt_collector_up{collector="amdsmi"} 1.0' in page
        promtool(page)
        dcgm = fetch(f"{told['url']}/dcgm/metrics")[1]
        assert dcgm.count("DCGM_FI_DEV_POWER_USAGE{") == 2
        children = child_processes(process.pid)
        assert len(children) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def child_processes(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted({int(word) for path in listed for word in path.read_text().split()})


def promtool(page: str) -> None:
    """Prometheus' own check of names, types and units; it says nothing if all is well."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    done = subprocess.run([program, "check", "metrics"], input=page, capture_output=True, text=True, timeout=30)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said == ""


def check_page(page: str) -> None:
    """What promtool does not look at: only catalogued names and labels, one series per label set, finite values,
    counters not negative, ages and shares in range, every series of a device known to the info family."""
    known = {metric.family: metric for metric in CATALOG}
    devices: set[str] = set()
    named: set[str] = set()
    for family in parse_text(page):
        metric = known[family.name]
        assert family.type == metric.kind
        assert family.documentation == metric.help
        seen = [frozenset(sample.labels.items()) for sample in family.samples]
        assert len(seen) == len(set(seen)), f"{family.name} has one series twice"
        for sample in family.samples:
            assert set(sample.labels) == set(metric.labels)
            assert abs(sample.value) < float("inf")
            assert metric.kind != "counter" or sample.value >= 0
            assert not family.name.endswith("_ratio") or "crosscheck" in family.name or 0 <= sample.value <= 1
            named |= {value for label, value in sample.labels.items() if label == "gpu_uuid"}
        if family.name.endswith("gpu_info"):
            devices = {sample.labels["gpu_uuid"] for sample in family.samples}
    assert named == devices


def test_the_check_of_a_page_finds_what_is_wrong() -> None:
    good = "# HELP energyopt_gpu_up {}\n# TYPE energyopt_gpu_up gauge\n".format(
        next(metric.help for metric in CATALOG if metric.name == "energyopt_gpu_up")
    )
    for line in ('energyopt_gpu_up{gpu_uuid="a"} 1', 'energyopt_gpu_up{gpu_uuid="a",scope="gpu"} +Inf'):
        with pytest.raises(AssertionError):
            check_page(f"{good}{line}\n")
    with pytest.raises(KeyError):
        check_page("unknown_thing 1\n")


def test_the_page_is_served_by_the_library_with_negotiation() -> None:
    clock = FakeClock()
    agent = Agent(FakeScan(clock), clock)
    with serving({"/metrics": make_wsgi_app(agent.registry)}) as url:
        request = urllib.request.Request(
            f"{url}/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")
    agent.stop()


def test_a_thread_ends_with_stop() -> None:
    agent = Agent(FakeScan(FakeClock()), FakeClock())
    agent.start()
    agent.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "energyopt-agent"]

"""The real ``energyopt power-helper`` over the stub driver: killed, started again, asked to end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Seconds, Watts
from telemetry.control.client import Connection, HelperGoneError
from telemetry.control.journal import Journal
from telemetry.control.protocol import Acquire, Show

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "tests/telemetry/stubs"
GPU = "GPU-00000000-0000-4000-8000-000000000000"
HELD = Acquire(devices=(GPU,), cap=Watts(300.0), sm_clock=Hertz(1.2e9), lifetime=Seconds(600.0))

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="without root no limit may be set")


class Helper:
    """The command as systemd would run it, and the driver it finds."""

    def __init__(self, folder: Path, state: Any) -> None:
        self.folder, self.state, self.path = folder, state, folder / "power.sock"
        self.process: subprocess.Popen[str] | None = None
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder),
            "NVMLSTUB_STATE": str(folder / "state"),
            "ENERGYOPT_POWER_JOURNAL": str(folder / "journal"),
        }

    @property
    def gpu(self) -> Any:
        return self.state.gpus[0]

    def start(self) -> None:
        program = str(Path(sys.executable).with_name("energyopt"))
        command = [program, "power-helper", "--socket", str(self.path), "--config", str(self.folder / "power.toml")]
        self.process = subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True, cwd="/")
        until(lambda: self.answers() or self.running.poll() is not None, 30.0)

    def answers(self) -> bool:
        try:
            channel = Connection.to(self.path)
        except HelperGoneError:
            return False
        channel.close()
        return True

    @property
    def running(self) -> subprocess.Popen[str]:
        assert self.process is not None
        return self.process

    def end(self, number: signal.Signals) -> str:
        self.running.send_signal(number)
        _, said = self.running.communicate(timeout=20.0)
        return said


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stub driver cannot be built")
    library = [compiler, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(tmp_path / "libnvidia-ml.so.1")]
    subprocess.run([*library, str(STUBS / "nvmlstub.c")], check=True, timeout=60)
    spec = importlib.util.spec_from_file_location("nvmlstub", STUBS / "nvmlstub.py")
    assert spec is not None
    assert spec.loader is not None
    stub: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)
    made = Helper(tmp_path, stub.create(tmp_path / "state"))
    made.state.now_ns = 0
    made.start()
    yield made
    made.running.kill()
    made.running.communicate()


def test_killed_with_its_holder_it_puts_back_at_its_next_start_and_sigterm_leaves_nothing(helper: Helper) -> None:
    channel = Connection.to(helper.path)
    channel.call(HELD)
    assert (helper.gpu.requested_mw, helper.gpu.clock_high) == (300_000, 1200)
    assert helper.path.stat().st_mode & 0o777 == 0o666
    helper.end(signal.SIGKILL)
    with pytest.raises(HelperGoneError):
        channel.call(Show())
    channel.close()
    assert (helper.gpu.requested_mw, helper.gpu.clock_high) == (300_000, 1200)
    helper.start()
    until(lambda: helper.gpu.requested_mw == 500_000)
    assert (helper.gpu.requested_mw, helper.gpu.clock_high) == (500_000, 0)
    assert Journal(helper.folder / "journal").entries() == ()
    channel = Connection.to(helper.path)
    channel.call(HELD)
    said = helper.end(signal.SIGTERM)
    channel.close()
    assert helper.running.returncode == 0
    assert (helper.gpu.requested_mw, helper.gpu.clock_high) == (500_000, 0)
    assert "listening at" in said
    assert f"{GPU}: the limit is 500 W again." in said
    assert not helper.path.exists()


def test_a_second_helper_is_refused_and_a_new_list_is_read_on_hangup(helper: Helper) -> None:
    program = str(Path(sys.executable).with_name("energyopt"))
    second = subprocess.run(
        [program, "power-helper", "--socket", str(helper.path)],
        env=helper.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 1
    assert "listens at" in second.stderr
    assert helper.answers(), "the first one still does"
    config = helper.folder / "power.toml"
    config.write_text('longest = "5s"\n')
    config.chmod(0o644)
    helper.running.send_signal(signal.SIGHUP)
    channel = Connection.to(helper.path)

    def refused() -> bool:
        try:
            lease = channel.call(HELD)
        except ControlError as error:
            return "5 s at most" in str(error) or "already under" in str(error)
        return lease is None

    until(refused)
    channel.close()
    status = Path(f"/proc/{helper.running.pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident < 128 * 1024, f"{resident} KiB: the unit allows 256 MiB"

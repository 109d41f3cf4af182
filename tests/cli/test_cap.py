"""``energyopt cap`` as a person types it: over a driver in memory, and once for real over the stub library."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from energyopt.cli.main import main
from energyopt.compose import caps, power
from energyopt.core.clock import MonotonicClock
from energyopt.core.units import Watts
from telemetry.control.access import Access
from telemetry.control.fake import FakeLimits
from telemetry.control.helper import PowerHelper
from telemetry.control.journal import Entry, Holder, Journal
from telemetry.control.limits import Limiter

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "tests/telemetry/stubs"
GPU = "GPU-00000000-0000-4000-8000-000000000000"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLimits:
    """One GPU that this process would reach itself, and an empty place for the helper's socket."""
    made = FakeLimits((GPU,))
    monkeypatch.setattr(power, "Backends", lambda: made)
    monkeypatch.setattr(caps, "list_gpus", lambda: [SimpleNamespace(uuid=GPU)])
    monkeypatch.setenv("ENERGYOPT_POWER_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setattr(power, "SOCKET", tmp_path / "power.sock")
    monkeypatch.setenv("ENERGYOPT_POWER_SOCKET", str(tmp_path / "power.sock"))
    return made


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["energyopt", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return run


@pytest.fixture
def helper(driver: FakeLimits, tmp_path: Path) -> Iterator[None]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        listener.bind(str(tmp_path / "power.sock"))
        listener.listen(4)
        served = PowerHelper(Limiter(driver, Journal(tmp_path / "journal")), Access, MonotonicClock())
        thread = threading.Thread(target=served.serve, kwargs={"listener": listener})
        thread.start()
        yield
        served.stop()
        thread.join(10.0)


def test_show_says_all_five_limits_and_who_holds_the_gpu(cli: Cli, driver: FakeLimits) -> None:
    driver.devices[GPU].other_limiter = Watts(450.0)
    code, out, _ = cli("cap", "show")
    assert code == 0
    assert GPU in out
    assert "held by nobody" in out
    assert "requested 500 W, enforced 450 W" in out
    assert "range 200 to 700 W, default 650 W, SM clock to 1980 MHz" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_set_holds_beyond_its_own_end_and_clear_puts_back(cli: Cli, driver: FakeLimits, helper: None) -> None:
    code, out, err = cli("cap", "set", "250W", "--for", "10min")
    assert (code, err) == (0, "")
    assert "requested 250 W, enforced 250 W" in out
    assert "energyopt cap clear" in out
    assert driver.devices[GPU].requested == 250.0
    code, out, _ = cli("cap", "show", "--json")
    (shown,) = json.loads(out)["devices"]
    assert shown["limits"]["requested"] == 250.0
    assert shown["lease"]["kept"] is True
    assert 590 < shown["lease"]["remaining"] <= 600
    code, out, _ = cli("cap", "show")
    assert f"(pid {os.getpid()}), 10 min left" in out or "9 min" in out
    code, out, _ = cli("cap", "clear")
    assert out == f"{GPU}: the limit is 500 W again.\n"
    assert driver.devices[GPU].requested == 500.0
    assert cli("cap", "clear")[1] == "Nothing was held.\n"


def test_set_with_json_is_one_document(cli: Cli, driver: FakeLimits, helper: None) -> None:
    _, out, _ = cli("cap", "set", "--sm-clock", "1.2GHz", "--for", "60s", "--json")
    document = json.loads(out)
    assert document["lease"]["sm_clock"] == 1.2e9
    assert document["devices"][0]["limits"]["requested"] == 500.0
    assert driver.devices[GPU].clock == 1.2e9
    said = json.loads(cli("cap", "clear", "--json")[1])["said"]
    assert said == [f"{GPU}: the clock ceiling was lifted."]


@pytest.mark.parametrize(
    ("words", "message", "status"),
    [
        (("set",), "Give a cap such as 250W", 2),
        (("set", "much"), "not a power", 2),
        (("set", "300W", "--for", "0s"), "above 0", 2),
        (("set", "9W"), "between 200 W and 700 W", 1),
        (("set", "300W", "--device", "GPU-9"), "not a device of this machine", 1),
        (("set", "300W", "--for", "40d"), "not a duration", 2),
    ],
)
def test_what_is_not_possible_is_said_in_one_sentence(
    cli: Cli, driver: FakeLimits, helper: None, words: Sequence[str], message: str, status: int
) -> None:
    code, out, err = cli("cap", *words)
    assert (code, out) == (status, "")
    assert message in " ".join(err.split())
    assert driver.calls == []


def test_without_permission_the_very_command_is_told(
    cli: Cli, driver: FakeLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.permitted = False
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, _, err = cli("cap", "set", "300W", "--for", "2h")
    assert code == 1
    assert "sudo energyopt cap set 300W --for 2h" in " ".join(err.split())


def test_what_a_dead_process_left_is_shown_and_cleared(cli: Cli, driver: FakeLimits, tmp_path: Path) -> None:
    me = Holder.me()
    dead = Entry(GPU, Holder(me.pid, me.started + 1, me.boot), 500_000, (300_000,), False)
    Journal(tmp_path / "journal").claim(dead)
    driver.devices[GPU].requested = Watts(300.0)
    err = cli("cap", "show")[2]
    assert "a process that died left a limit" in err
    assert cli("cap", "clear")[1] == f"{GPU}: the limit is 500 W again.\n"
    assert driver.devices[GPU].requested == 500.0
    assert "died" not in cli("cap", "show")[2]


def test_without_a_gpu_it_says_so(cli: Cli, driver: FakeLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "list_gpus", list)
    code, _, err = cli("cap", "show")
    assert code == 2
    assert "No GPU was found" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="without root no limit may be set, and the stub cannot change that")
def test_the_real_command_leaves_a_child_that_puts_back_by_itself(tmp_path: Path) -> None:
    """No helper: the command ends at once, its child keeps the lease to its end."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stub driver cannot be built")
    library = [compiler, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(tmp_path / "libnvidia-ml.so.1")]
    subprocess.run([*library, str(STUBS / "nvmlstub.c")], check=True, timeout=60)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "NVMLSTUB_STATE": str(tmp_path / "state"),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(STUBS))),
        "ENERGYOPT_POWER_JOURNAL": str(tmp_path / "journal"),
        "ENERGYOPT_POWER_SOCKET": str(tmp_path / "none.sock"),
    }
    state = "import nvmlstub, sys; from pathlib import Path; gpu = nvmlstub.%s.gpus[0]; print(gpu.requested_mw)"

    def requested(how: str) -> int:
        command = [sys.executable, "-c", state % how]
        return int(subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60).stdout)

    path = f"Path({str(tmp_path / 'state')!r})"
    assert requested(f"create({path})") == 500_000
    began = time.monotonic()
    command = [str(Path(sys.executable).with_name("energyopt")), "cap", "set", "300W", "--for", "4s", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    document = json.loads(done.stdout)
    assert document["lease"]["user"] == "root"
    journal = Journal(tmp_path / "journal")
    (entry,) = journal.entries()
    assert entry.holder.alive
    assert requested(f"attach({path})") == 300_000
    while journal.entries():
        assert time.monotonic() < began + 60
        time.sleep(0.05)
    assert requested(f"attach({path})") == 500_000
    while entry.holder.alive:
        assert time.monotonic() < began + 60, "the child outlives its last lease"
        time.sleep(0.05)

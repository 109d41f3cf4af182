"""The systemd units: systemd takes them, their commands parse, and each process may do no more than its work."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_lines import parse

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = ("energyopt-agent.service", "energyopt-api.service", "energyopt-serve@.service", "energyopt-worker.service")


def service(name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)  # a key that is given twice is an error
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((UNITS / name).read_text())
    assert parser.sections() == ["Unit", "Service", "Install"]
    return dict(parser["Service"])


def test_these_are_all() -> None:
    assert sorted(path.name for path in UNITS.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_takes_it(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    text = (UNITS / name).read_text().replace("/opt/energyopt/bin/energyopt", sys.executable)
    unit = tmp_path / name
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", NAMES)
def test_its_command_parses(name: str) -> None:
    program, *words = shlex.split(service(name)["ExecStart"])
    assert program == "/opt/energyopt/bin/energyopt"
    words = ["smollm2-135m" if word == "${MODEL}" else word for word in words if word != "$OPTIONS"]
    parse(words)


@pytest.mark.parametrize("name", NAMES)
def test_it_may_do_no_more_than_its_work(name: str) -> None:
    mine = service(name)
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "RestrictNamespaces", "RestrictSUIDSGID"):
        assert mine[key] == "yes", key
    assert mine["ProtectSystem"] == "strict"
    assert mine["CapabilityBoundingSet"] == ("CAP_DAC_READ_SEARCH" if "agent" in name else "")
    assert mine["User"] == ("root" if "agent" in name else "energyopt")
    assert mine["Restart"] == "on-failure"
    assert mine["Environment"].removeprefix("HOME=/var/lib/") == mine["StateDirectory"]

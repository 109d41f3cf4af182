"""The unit file of the power helper: complete, hardened, and with the command of this installation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from energyopt.compose.helper import EXAMPLE, install_helper, unit_text
from energyopt.core.errors import ControlError
from telemetry.control.access import Access, load_access


def parsed(text: str) -> dict[str, dict[str, list[str]]]:
    """Sections, keys, and every value of a key: systemd lets keys repeat."""
    sections: dict[str, dict[str, list[str]]] = {}
    name = ""
    for line in (raw.strip() for raw in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            name = line.strip("[]")
            sections[name] = {}
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        sections[name].setdefault(key, []).append(value)
    return sections


UNIT = parsed(unit_text())
SERVICE = UNIT["Service"]


def test_it_has_the_sections_of_a_service() -> None:
    assert list(UNIT) == ["Unit", "Service", "Install"]
    assert UNIT["Install"]["WantedBy"] == ["multi-user.target"]


def test_it_starts_this_installation_and_starts_it_again_whatever_happens() -> None:
    (command,) = SERVICE["ExecStart"]
    program, verb, *_ = command.split()
    assert program == str(Path(sys.executable).with_name("energyopt"))
    assert verb == "power-helper"
    assert SERVICE["Restart"] == ["always"]
    assert "@" not in command


def test_the_journal_outlives_the_process_and_its_time_to_put_back_is_longer_than_a_drivers_calls() -> None:
    assert SERVICE["RuntimeDirectory"] == ["energyopt"]
    assert SERVICE["RuntimeDirectoryPreserve"] == ["yes"]
    assert int(SERVICE["TimeoutStopSec"][0]) >= 30


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("CapabilityBoundingSet", "CAP_SYS_ADMIN"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("PrivateNetwork", "yes"),
        ("RestrictAddressFamilies", "AF_UNIX"),
        ("DevicePolicy", "closed"),
        ("ProtectKernelModules", "yes"),
        ("ProtectControlGroups", "yes"),
        ("RestrictNamespaces", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("SystemCallArchitectures", "native"),
        ("UMask", "0077"),
        ("LimitCORE", "0"),
    ],
)
def test_it_has_no_more_than_it_needs(key: str, value: str) -> None:
    assert SERVICE[key] == [value]


def test_it_reaches_the_gpus_and_nothing_else() -> None:
    assert SERVICE["DeviceAllow"] == ["char-nvidia* rw", "char-drm rw", "char-kfd rw"]


def test_systemd_itself_takes_it_and_finds_little_exposure(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "energyopt-power-helper.service"
    unit.write_text(unit_text())
    command = [program, "security", "--offline=true", "--threshold=25", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "Unknown" in done.stderr or "unrecognized" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file")
    assert done.returncode == 0, done.stdout + done.stderr


def test_installing_writes_the_unit_and_keeps_a_list_that_is_there(tmp_path: Path) -> None:
    unit, config = tmp_path / "x.service", tmp_path / "energyopt" / "power.toml"
    said = install_helper(config, unit)
    assert any("systemctl enable --now energyopt-power-helper" in line for line in said)
    assert unit.read_text() == unit_text()
    assert load_access(config) == Access()
    config.write_text('longest = "1h"\n')
    install_helper(config, unit)
    assert load_access(config).longest == 3600.0


def test_the_example_is_right_when_its_comments_are_taken_away(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in EXAMPLE.splitlines()[1:]]
    config = tmp_path / "power.toml"
    config.write_text("\n".join(lines))
    config.chmod(0o644)
    assert load_access(config).allow[0].users == ("llm",)


def test_installing_without_permission_tells_the_command(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"run `sudo .*energyopt power-helper --install`"):
        install_helper(tmp_path / "power.toml", tmp_path / "absent" / "x.service")

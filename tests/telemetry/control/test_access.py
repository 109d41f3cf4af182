"""The allow-list file, the unit file, and the port's contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.core.errors import ConfigError
from telemetry.control.access import MAX_CONFIG, Access, load_access

GOOD = """
longest = "2h"
[[allow]]
users = ["llm", 1001]
devices = ["GPU-1"]
lowest_cap = "200W"
[[allow]]
users = ["ops"]
"""


def written(tmp_path: Path, text: str | bytes, mode: int = 0o644) -> Path:
    path = tmp_path / "power.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_the_file_says_who_may_what(tmp_path: Path) -> None:
    access = load_access(written(tmp_path, GOOD))
    assert access.longest == 7200.0
    first, second = access.allow
    assert (first.users, first.devices, first.lowest_cap) == (("llm", 1001), ("GPU-1",), 200.0)
    assert second.covers("GPU-anything")
    assert second.lowest_cap is None


def test_without_a_file_nobody_but_root_is_allowed(tmp_path: Path) -> None:
    assert load_access(tmp_path / "none.toml") == Access()


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="writable by nobody else"):
        load_access(written(tmp_path, GOOD, mode))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("allow = 3", "allow"),
        ("[[allow]]\nusers = []", "users"),
        ("[[allow]]\nusers = ['a']\nlowest_cap = 'much'", "not a power"),
        ("longest = '-1s'", "longest|not a duration"),
        ("colour = 'red'", "colour"),
        ("x = = 1", "not valid"),
        (b"\xff\xfe", "not valid"),
        ("#" * (MAX_CONFIG + 1), "longer than"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str | bytes, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_access(written(tmp_path, text))

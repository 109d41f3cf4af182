"""The journal survives its writer and is never written by two."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from energyopt.core.errors import ControlError
from telemetry.control import journal as journal_module
from telemetry.control.journal import Entry, Holder, Journal, default_directory


def entry(device: str = "GPU-1", holder: Holder | None = None) -> Entry:
    return Entry(device, holder or Holder.me(), 500_000, (400_000,), False, "auto")


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new/power")
    journal.claim(entry())
    assert Journal(tmp_path / "new/power").entries() == (entry(),)
    assert (tmp_path / "new/power").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "new/power").iterdir()) == [".lock", "GPU-1.json"]
    journal.release("GPU-1")
    journal.release("GPU-1")
    assert journal.entries() == ()


def test_the_write_is_durable_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noting(name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def call(*args: object) -> None:
            order.append(name)
            real(*args)

        return call

    for name in ("fsync", "link"):
        monkeypatch.setattr(os, name, noting(name))
    Journal(tmp_path).claim(entry())
    assert order == ["fsync", "link", "fsync"]


def test_a_device_has_one_holder(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.claim(entry())
    with pytest.raises(ControlError, match="already under a limit"):
        journal.claim(entry())
    journal.claim(entry("GPU-2"))


def test_without_a_place_to_write_nothing_may_be_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ControlError, match="No limit was set"):
        Journal(tmp_path / "file/power").claim(entry())


@pytest.mark.parametrize("device", ["../evil", "a/b", "", ".hidden", "x" * 200, "a\nb"])
def test_no_identity_leads_out_of_the_directory(tmp_path: Path, device: str) -> None:
    with pytest.raises(ControlError, match="not a device identity"):
        Journal(tmp_path).claim(entry(device))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"device": 3, "holder": 4}', "\x00\xff"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "GPU-1.json").write_text(text)
    with pytest.raises(ControlError, match=r"GPU-1\.json"):
        Journal(tmp_path).entries()


def test_a_reused_process_id_is_not_the_holder() -> None:
    me = Holder.me()
    assert me.alive
    assert not replace(me, started=me.started + 1).alive
    assert not replace(me, boot="another").alive
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        holder = Holder(child.pid, int(stat[19]), me.boot)
        assert holder.alive
    finally:
        child.kill()
        child.wait()
    assert not holder.alive


def test_the_directory_goes_with_the_user() -> None:
    found = default_directory({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert found == Path("/run/energyopt/power" if os.geteuid() == 0 else "/run/user/7/energyopt/power")


def test_a_file_that_is_no_entry_bars_its_device_and_no_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.claim(entry("GPU-2"))
    (tmp_path / "GPU-1.json").write_text("{")
    found, problems = journal.readable()
    assert found == (entry("GPU-2"),)
    assert len(problems) == 1
    assert "GPU-1.json" in problems[0]
    with pytest.raises(ControlError, match="already under a limit"):
        journal.claim(entry("GPU-1"))


def test_who_puts_back_for_the_dead_keeps_others_from_claiming(tmp_path: Path) -> None:
    """Else a slow one could put back, and forget, what another has claimed after a fast one had put back."""
    journal = Journal(tmp_path)
    order: list[str] = []

    def claim() -> None:
        Journal(tmp_path).claim(entry())
        order.append("claimed")

    with journal.locked():
        thread = threading.Thread(target=claim)
        thread.start()
        time.sleep(0.1)
        order.append("put back")
    thread.join(10.0)
    assert order == ["put back", "claimed"]


def test_a_lock_that_is_never_given_up_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PATIENCE", 0.1)
    with Journal(tmp_path).locked(), pytest.raises(ControlError, match="locked by another process"):
        Journal(tmp_path).claim(entry())

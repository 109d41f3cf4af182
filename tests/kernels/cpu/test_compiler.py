"""Building: once, into the user's own folder, with a message that helps where it cannot be done."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from kernels.cpu import compiler
from kernels.cpu.compiler import (
    CompilerMissingError,
    NoCompilerError,
    built,
    cache_folder,
    find_compiler,
    ship,
    sources,
)
from kernels.cpu.instructions import VARIANTS, runnable, variant_named
from kernels.cpu.library import open_library

PORTABLE = variant_named("portable")


def test_every_source_is_shipped() -> None:
    names = {path.name for path in sources()}
    assert "native.cpp" in names
    lines = [line for path in sources() for line in path.read_text().splitlines()]
    included = {line.split('"')[1] for line in lines if line.startswith('#include "')}
    assert included <= names


def test_the_last_variant_runs_everywhere() -> None:
    assert VARIANTS[-1].runs_on({})
    assert not VARIANTS[0].runs_on({"avx2": True})
    assert runnable()[-1] is PORTABLE
    with pytest.raises(ValueError, match="known are avx512-bf16, avx512, avx2-vnni, avx2, portable"):
        variant_named("mmx")


def test_no_compiler_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CompilerMissingError, match="none of c\\+\\+, g\\+\\+, clang\\+\\+ is here; install"):
        find_compiler({"PATH": str(tmp_path)})
    with pytest.raises(CompilerMissingError, match="CXX = 'missing' is not a program"):
        find_compiler({"PATH": str(tmp_path), "CXX": "missing"})


def test_the_cache_is_the_users(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "energyopt" / "native"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}).is_absolute()


def fake_compiler(folder: Path, script: str) -> Path:
    """A compiler that counts its calls and does what ``script`` says; the output's name is the last argument."""
    path = folder / "fake-c++"
    path.write_text(f"#!/bin/sh\necho call >> {folder}/calls\nfor out; do :; done\n{script}\n")
    path.chmod(0o755)
    return path


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().split())


def test_it_compiles_once_and_again_for_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, 'echo built > "$out"')))
    first = built(PORTABLE, tmp_path / "cache")
    assert built(PORTABLE, tmp_path / "cache") == first
    assert calls(tmp_path) == 1
    assert first.read_text() == "built\n"
    assert [path for path in first.parent.iterdir() if path != first] == [], "nothing is left behind"
    other = tmp_path / "more.h"
    other.write_text("// another version\n")
    monkeypatch.setattr(compiler, "sources", lambda: (*sources(), other))
    assert built(PORTABLE, tmp_path / "cache") != first
    assert calls(tmp_path) == 2


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "echo no such header >&2; exit 1")))
    with pytest.raises(NoCompilerError, match="failed on the native kernels \\(portable\\): no such header"):
        built(PORTABLE, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_compiler_that_hangs_ends_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'sleep 600 & echo $! > {tmp_path}/child; echo $$ > "$out"; mv {tmp_path}/child {tmp_path}/started; wait'
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, script)))
    started = tmp_path / "started"
    communicate = subprocess.Popen.communicate

    def patient(process: Any, *_: Any, timeout: float | None = None) -> Any:
        """The timeout comes once the compiler has a child of its own, however slow the machine."""
        while timeout is not None and not started.exists():
            time.sleep(0.005)
        return communicate(process, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", patient)
    monkeypatch.setattr(compiler, "PATIENCE", 0.01)
    with pytest.raises(NoCompilerError, match=r"could not build the native kernels: .*timed out"):
        built(PORTABLE, tmp_path / "cache")
    assert ended(int(started.read_text()))
    assert list((tmp_path / "cache").iterdir()) == []


def ended(pid: int) -> bool:
    """Whether a killed process goes; nobody may wait for it, so a zombie counts."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.005)
    return False


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, 'echo built > "$out"')))
    folder = tmp_path / "open"
    folder.mkdir()
    os.chmod(folder, 0o777)
    with pytest.raises(NoCompilerError, match="may be written by others"):
        built(PORTABLE, folder)
    with pytest.raises(NoCompilerError, match=r"since .*open above it may be written by others"):
        built(PORTABLE, folder / "inner")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NoCompilerError, match=r"since .*open above it may be written by others"):
        built(PORTABLE, tmp_path / "link" / "other")
    os.chmod(folder, 0o1777)  # as /tmp is
    assert built(PORTABLE, folder / "inner").parent.name == "inner"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, 'echo built > "$out"')))
    folder = tmp_path / "theirs"
    (folder / "inner").mkdir(parents=True)
    os.chown(folder, 4711, 4711)
    with pytest.raises(NoCompilerError, match="theirs above it belongs to user 4711"):
        built(PORTABLE, folder / "inner")


def test_a_folder_that_cannot_be_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, 'echo built > "$out"')))
    (tmp_path / "file").write_text("")
    with pytest.raises(NoCompilerError, match=r"cannot be kept: .*file"):
        built(PORTABLE, tmp_path / "file" / "cache")


def test_what_the_installation_brings_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, 'echo shipped > "$out"')))
    made = ship(tmp_path / "built")
    monkeypatch.setenv("CXX", "missing")
    assert built(PORTABLE, tmp_path / "cache", tmp_path / "built") in made
    made[-1].chmod(0o777)
    with pytest.raises(CompilerMissingError):
        built(PORTABLE, tmp_path / "cache", tmp_path / "built")


def test_a_library_that_others_may_write_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, 'echo built > "$out"')))
    path = built(PORTABLE, tmp_path / "cache")
    path.chmod(0o777)
    path.write_text("foreign")
    assert built(PORTABLE, tmp_path / "cache").read_text() == "built\n"


def test_what_is_no_library_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(b"no ELF")
    with pytest.raises(NoCompilerError, match="cannot be loaded"):
        open_library(path)

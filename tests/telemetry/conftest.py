"""The stub driver, built once a run, and ways to run code in processes that load it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STUBS = Path(__file__).parent / "stubs"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds the stub as ``libnvidia-ml.so.1``."""
    directory = tmp_path_factory.mktemp("nvml")
    _build_nvml(directory / "libnvidia-ml.so.1", "-Wl,-soname,libnvidia-ml.so.1")
    return directory


@pytest.fixture(scope="session")
def nameless_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub for this very process: without the driver's name, or whoever opens the driver later would get it."""
    target = tmp_path_factory.mktemp("nameless") / "nvmlstub.so"
    _build_nvml(target)
    return target


def _build_nvml(target: Path, *flags: str) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stub driver cannot be built")
    command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *flags]
    subprocess.run([*command, "-o", str(target), str(STUBS / "nvmlstub.c")], check=True, timeout=60)


@pytest.fixture(scope="session")
def stub_environment(nvml_library: Path) -> dict[str, str]:
    """The environment of a process whose driver is the stub; it lacks the state, ``NVMLSTUB_STATE``."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(nvml_library),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(STUBS))),
    }


@pytest.fixture(scope="session")
def stub_server(stub_environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(STUBS / "server.py")]
    with subprocess.Popen(
        command, env=stub_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    return tmp_path / "nvml.state"


@pytest.fixture
def in_stub(stub_server: subprocess.Popen[str], state_path: Path) -> Callable[[str], Any]:
    """Run a script in a fresh process with the stub; returns what it passed to ``answer`` (JSON).

    The script finds ``state`` (one GPU unless it creates another) and ``clock`` (virtual, the stub's own).
    """

    def run(script: str) -> Any:
        assert stub_server.stdin is not None
        assert stub_server.stdout is not None
        order = {"script": textwrap.dedent(script), "state": str(state_path)}
        stub_server.stdin.write(json.dumps(order) + "\n")
        stub_server.stdin.flush()
        result = json.loads(stub_server.stdout.readline())
        assert "error" not in result, result["error"]
        return result["answer"]

    return run


def _amd_stub() -> Any:
    """The module beside this file that builds and drives AMD's stub; it is not on the import path."""
    spec = importlib.util.spec_from_file_location("amdstub", STUBS / "amdstub.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def amdstub() -> Any:
    """The stub's module: ``create``, ``build``, constants."""
    if importlib.util.find_spec("amdsmi") is None:
        pytest.skip("amdsmi is not installed")
    return _amd_stub()


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler: the stub library cannot be built")
    return found


@pytest.fixture(scope="session")
def amd_library(amdstub: Any, compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ROCm directory that holds the stub."""
    built: Path = amdstub.build(tmp_path_factory.mktemp("rocm"), compiler)
    return built


@pytest.fixture
def amd_machine(
    amdstub: Any, amd_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Any]:
    """Makes children of this process see so many AMD GPUs; returns their state."""

    def make(gpus: int = 1) -> Any:
        path = tmp_path / "amd.state"
        monkeypatch.setenv("ROCM_PATH", str(amd_library))
        monkeypatch.setenv("AMDSTUB_STATE", str(path))
        return amdstub.create(path, gpus)

    return make

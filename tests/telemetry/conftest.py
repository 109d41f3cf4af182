"""The stub driver, built once a run, and ways to run code in processes that load it."""

from __future__ import annotations

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
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stub driver cannot be built")
    directory = tmp_path_factory.mktemp("nvml")
    target = directory / "libnvidia-ml.so.1"
    flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, "-o", str(target), str(STUBS / "nvmlstub.c")], check=True, timeout=60)
    return directory


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

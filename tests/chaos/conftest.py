"""Disks, drivers and programs for a bad day; each ends with its test. Most need root: without it they skip."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import Memory, SmallDisk, WallClock, faketime, namespace
from tests.chaos.link import Link
from tests.chaos.programs import Program, free_port

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "tests" / "telemetry" / "stubs"
MIB, NETWORK = 1 << 20, "energyopt-chaos"
Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``energyopt WORDS``, whose last word may be "--port": a free one follows, and ``url`` names it."""
    with ExitStack() as ended:

        def begin(*words: str, **how: Any) -> Program:
            url = ""
            if words[-1] == "--port":
                port = str(free_port())
                words, url = (*words, port), f"http://{how.pop('host', '127.0.0.1')}:{port}"
            program = Program(tmp_path, *words, url=url, **how).start()
            ended.callback(_put_down, program)
            return program

        yield begin


@pytest.fixture
def serve(start: Start, tiny_model: Path) -> Start:
    """Starts an engine whose pool is far smaller than its clients' prompts, so that its tiers matter."""

    def begin(*words: str, **how: Any) -> Program:
        pool = ("--kv-cache-memory-bytes", "192KiB", "--dtype", "float32", "--threads", "1")
        meter = () if "--meter" in words else ("--meter", "estimated")
        return start("serve", str(tiny_model), *pool, *meter, *words, "--port", **how)

    return begin


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """32 MiB of file system."""
    _needs_root("mounts")
    disk = SmallDisk(tmp_path / "disk", 32 * MIB)
    yield disk
    disk.close()


@pytest.fixture
def link() -> Iterator[Link]:
    """A cable to a network of its own; ``link.before`` runs a command there."""
    _needs_root("networks")
    if not Path("/dev/net/tun").exists():
        pytest.skip("no /dev/net/tun: a cable cannot be made")
    with namespace(NETWORK):
        cable = Link(NETWORK)
        yield cable
        cable.close()


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A control group of 150 MiB, which no engine starts in."""
    _needs_root("control groups")
    try:
        made = Memory(f"energyopt-chaos-{os.getpid()}", 150 * MIB)
    except OSError as reason:
        pytest.skip(f"no memory control group can be made here: {reason}")
    yield made
    made.close()


@pytest.fixture
def wall_clock(tmp_path: Path) -> WallClock:
    library = faketime()
    if library is None:
        pytest.skip("no libfaketime: install the package faketime")
    return WallClock(tmp_path / "clock", library)


class Driver:
    """The stub of NVIDIA's driver: ``state`` is its memory, ``environment`` makes a program load it."""

    def __init__(self, folder: Path, gpus: int) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: the stub driver cannot be built")
        flags = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
        library = str(folder / "libnvidia-ml.so.1")
        subprocess.run([compiler, *flags, "-o", library, str(STUBS / "nvmlstub.c")], check=True, timeout=60)
        spec = importlib.util.spec_from_file_location("nvmlstub", STUBS / "nvmlstub.py")
        assert spec is not None
        assert spec.loader is not None
        stub: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(stub)
        self.state = stub.create(folder / "state", gpus)
        self.state.now_ns = 0  # the stub's clock is the machine's from now on
        self._began = time.monotonic_ns()
        for gpu in self.state.gpus[:gpus]:
            gpu.since_ns, gpu.base_uj = self._began, 0
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder),
            "NVMLSTUB_STATE": str(folder / "state"),
            "ENERGYOPT_POWER_JOURNAL": str(folder / "journal"),
        }

    def joules(self) -> float:
        """What each GPU has used since the driver was made, at its constant 300 W."""
        return (time.monotonic_ns() - self._began) * 300.0 / 1e9


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    folder = tmp_path / "driver"
    folder.mkdir()
    return Driver(folder, 2)


def _put_down(program: Program) -> None:
    if program.alive:
        program.kill()


def _needs_root(what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"{what} need root")

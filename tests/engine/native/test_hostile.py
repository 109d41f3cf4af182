"""What must never reach memory: ids, positions and blocks that are out of range, threads that do not start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, EngineError, OutOfMemoryError
from energyopt.core.units import Seconds
from engine.batch import Batch, ScheduledRequest
from engine.models import open_source
from engine.native import loading
from engine.native.loading import load_native
from engine.native.model import NativeModel
from engine.native.runner import NativeRunner
from engine.request import Request, SamplingParams
from kernels.cpu.compiler import built
from kernels.cpu.instructions import runnable
from kernels.cpu.program import NativeError, Step

if TYPE_CHECKING:
    from tests.engine.native.conftest import Tiny


@pytest.fixture(scope="module")
def runner(tiny: Tiny) -> Iterator[NativeRunner]:
    made = tiny.runner()
    yield made
    made.close()


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


GOOD = Step(ints(1, 2, 3), ints(0, 1, 2), ints(0, 0, 3, 0).reshape(1, 4), ints(5), ints(2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": ints(1, 256, 3)}, "token 256 is not below 256"),
        ({"tokens": ints(1, -1, 3)}, "token -1"),
        ({"tables": ints(512)}, "block 512 is not below 512"),
        ({"tables": ints(-1)}, "block -1"),
        ({"tables": ints()}, "a block table is too short"),
        ({"wanted": ints(3)}, "wanted row 3 is not below 3"),
        ({"wanted": ints(-1)}, "wanted row -1"),
        ({"wanted": ints(0, 1, 2, 2)}, "more rows are wanted than there are"),
        ({"positions": ints(0, 1, 99)}, "positions are not those"),
        ({"positions": ints(0, 1)}, "2 positions"),
        ({"spans": ints(0, 0, 2, 0).reshape(1, 4)}, "not all rows"),
        ({"spans": ints(0, 0, 2**31 - 1, 0).reshape(1, 4)}, "end to end"),
        ({"spans": ints(1, 0, 2, 0).reshape(1, 4)}, "end to end"),
        ({"spans": ints(0, -1, 3, 0).reshape(1, 4)}, "position is out of range"),
        ({"spans": ints(0, 2**31 - 1, 3, 0).reshape(1, 4)}, "position is out of range"),
        ({"spans": ints(0, 0, 3, -1).reshape(1, 4)}, "too short"),
        ({"spans": ints(0, 0, 3, 2**31 - 1).reshape(1, 4)}, "too short"),
        ({"spans": ints(0, 0, 3).reshape(1, 3)}, "3 columns"),
        ({"tokens": np.array([1, 2, 3])}, "tokens is not a contiguous array of 32-bit"),
        ({"tokens": ints(1, 2, 3, 4, 5, 6)[::2]}, "tokens is not a contiguous"),
    ],
)
def test_a_step_that_points_elsewhere_is_refused(runner: NativeRunner, changes: dict[str, Any], words: str) -> None:
    program = runner._model.program
    with pytest.raises(NativeError, match=words):
        program.step(replace(GOOD, **changes), 1)
    assert program.step(GOOD, 1).shape == (1, 256), "and the next one is computed"


def test_the_runner_says_so_in_the_engines_own_words(runner: NativeRunner) -> None:
    request = Request("r", (1, 999), SamplingParams(), Seconds(0.0))
    request.block_ids = [0]
    with pytest.raises(EngineError, match=r"refuse a step of 2 tokens: token 999 is not below 256\."):
        runner.logits(Batch((ScheduledRequest(request, 0, 2, True),)))


CHILD = """
import ctypes, resource, sys
library = ctypes.CDLL(sys.argv[1])
library.native_open.restype, library.native_error.restype = ctypes.c_void_p, ctypes.c_char_p
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
shape, frequencies = (ctypes.c_int32 * 8)(1, 32, 32, 2, 1, 16, 32), (ctypes.c_float * 8)()
for threads in (100, 2):
    model = library.native_open(shape, frequencies, threads)
    print(bool(model), library.native_error().decode() if not model else "")
"""


def test_threads_that_cannot_be_started_are_an_error_and_no_hang() -> None:
    """The system refuses the stacks of most of a hundred threads; those that began must end."""
    command = [sys.executable, "-c", CHILD, str(built(runnable()[0]))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("False Resource temporarily unavailable")
    assert second.startswith("True")


def test_such_threads_are_named(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NativeError("no more of them")

    monkeypatch.setattr(loading, "NativeModel", fail)
    with pytest.raises(ConfigError, match=r"threads = 2 is not possible here: no more of them; fewer may be\."):
        load_native(tiny.config, *open_source(tiny.config))


@pytest.mark.parametrize(("size", "error"), [(2**50, OutOfMemoryError), (1, ConfigError)])
def test_a_refused_pool_gives_the_weights_back(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, size: int, error: type[Exception]
) -> None:
    closed: list[NativeModel] = []
    monkeypatch.setattr(NativeModel, "close", lambda model: closed.append(model))
    config = tiny.config.model_copy(update={"kv": tiny.config.kv.model_copy(update={"memory_bytes": size})})
    loaded = load_native(config, *open_source(config))
    assert loaded is not None
    with pytest.raises(error):
        NativeRunner(loaded, loaded.model, config, FakeClock())
    assert closed == [loaded.model]
    monkeypatch.undo()
    loaded.model.close()

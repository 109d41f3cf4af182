"""The AMD stub library: building it for the installed ``amdsmi``, and its state from Python."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
import subprocess
import time
from pathlib import Path

MAGIC = 0x616D6473
CALLS = (
    *("identity", "energy", "power", "cap", "set_cap", "clocks", "set_clocks", "temperature", "activity", "metrics"),
    *("perf", "slow_ms"),
)
ROOM = 16
MAX_GPUS = 16
SIGBUS = -7
UNKNOWN_32 = 0xFFFFFFFF
C_TYPES = {"c_uint16": "uint16_t", "c_uint32": "uint32_t", "c_uint64": "uint64_t", "c_ubyte": "uint8_t"}


class Gpu(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("serial", ctypes.c_char * 32),
        ("bus", ctypes.c_uint32),
        ("function", ctypes.c_uint32),
        ("hip", ctypes.c_uint32),
        ("perf_level", ctypes.c_uint32),
        ("socket_w", ctypes.c_uint64),
        ("current_w", ctypes.c_uint32),
        ("average_w", ctypes.c_uint32),
        ("clock", ctypes.c_uint32),
        ("clock_low", ctypes.c_uint32),
        ("clock_high", ctypes.c_uint32),
        ("memory_clock", ctypes.c_uint32),
        ("busy", ctypes.c_uint32),
        ("memory_busy", ctypes.c_uint32),
        ("edge", ctypes.c_int64),
        ("hotspot", ctypes.c_int64),
        ("vram", ctypes.c_int64),
        ("cap", ctypes.c_uint64),
        ("default_cap", ctypes.c_uint64),
        ("low_cap", ctypes.c_uint64),
        ("high_cap", ctypes.c_uint64),
        ("base_uj", ctypes.c_uint64),
        ("power_mw", ctypes.c_uint64),
        ("since_ns", ctypes.c_uint64),
        ("tick_ns", ctypes.c_uint64),
        ("wrap", ctypes.c_uint64),
        ("true_resolution", ctypes.c_double),
        ("resolution", ctypes.c_float),
        ("pad", ctypes.c_uint32),
        ("samples", ctypes.c_uint64),
        ("ppt", ctypes.c_uint64),
        ("prochot", ctypes.c_uint64),
        ("socket_thermal", ctypes.c_uint64),
        ("vr_thermal", ctypes.c_uint64),
        ("hbm_thermal", ctypes.c_uint64),
        ("memory_high", ctypes.c_uint32),
        ("sclk_resets_mclk", ctypes.c_uint32),
        ("rc", ctypes.c_int32 * ROOM),
        ("after", ctypes.c_uint32 * ROOM),
        ("calls", ctypes.c_uint32 * ROOM),
    )

    def fail(self, call: str, code: int, after: int = 0) -> None:
        """Let ``call`` return ``code`` after ``after`` more calls; 0 heals it, SIGBUS ends the process."""
        index = CALLS.index(call)
        self.after[index] = self.calls[index] + after
        self.rc[index] = code

    def count(self, call: str) -> int:
        return int(self.calls[CALLS.index(call)])


class State(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("now_ns", ctypes.c_uint64),
        ("init_rc", ctypes.c_int32),
        ("init_calls", ctypes.c_uint32),
        ("gpus", Gpu * MAX_GPUS),
    )


def create(path: Path, gpus: int = 1) -> State:
    """A machine of ``gpus`` MI300X-like boards at 400 W in real time, with the true resolution of 2^-16 J."""
    path.write_bytes(bytes(ctypes.sizeof(State)))
    state = attach(path)
    state.magic, state.count = MAGIC, gpus
    for index in range(gpus):
        gpu = state.gpus[index]
        gpu.name, gpu.serial = b"Stub MI300X", f"{0xABC0 + index:x}".encode()
        gpu.bus, gpu.hip, gpu.clock, gpu.clock_low, gpu.clock_high = 3 + index, index, 1900, 500, 2100
        gpu.memory_high = 1300
        gpu.memory_clock, gpu.busy, gpu.memory_busy, gpu.edge, gpu.hotspot, gpu.vram = 1300, 88, 33, -1, 61, 52
        gpu.socket_w, gpu.current_w, gpu.average_w = 0xFFFF, 400, 0xFFFF
        gpu.cap, gpu.default_cap, gpu.low_cap, gpu.high_cap = 700_000_000, 750_000_000, 0, 750_000_000
        gpu.power_mw, gpu.since_ns, gpu.base_uj = 400_000, time.monotonic_ns(), 5 * 10**9
        gpu.true_resolution = gpu.resolution = 1e6 / 65536
    return state


def attach(path: Path) -> State:
    """The state of a file that exists, shared with every process that maps it."""
    with path.open("r+b") as file:
        return State.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(State)))


def build(directory: Path, compiler: str, *, without: str | None = None) -> Path:
    """Compile ``lib/libamd_smi.so`` under ``directory``; ``without`` leaves a symbol out, as an older ROCm would."""
    spec = importlib.util.find_spec("amdsmi")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text(encoding="utf-8")
    symbols = sorted(set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", source)) - {without})
    here = Path(__file__).parent
    library = directory / "lib"
    library.mkdir(parents=True)
    (directory / "metrics.h").write_text(_metrics(source))
    own = set(re.findall(r"^int (amdsmi_\w+)\(", (here / "amdstub.c").read_text(), re.M))
    fillers = "\n".join(f"int {name}(void) {{ return 2; }}" for name in symbols if name not in own)
    (directory / "fillers.c").write_text(fillers + "\n")
    files = [str(here / "amdstub.c"), str(directory / "fillers.c")]
    flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{directory}"]
    subprocess.run([compiler, *flags, "-o", str(library / "libamd_smi.so"), *files], check=True, timeout=60)
    return directory


def _metrics(source: str) -> str:
    """The first part of the binding's struct of firmware metrics as C, up to the last counter that is used."""
    found = re.search(r"struct_amdsmi_gpu_metrics_t\._fields_ = \[(.*?)\n\]", source, re.S)
    assert found is not None
    lines = ["#include <stdint.h>", "typedef struct {", "    uint16_t size; uint8_t format, content;"]
    for name, kind, count in re.findall(r"\('(\w+)', ctypes\.(\w+)(?: \* (\d+))?\)", found.group(1)):
        if name == "num_partition":
            break
        lines.append(f"    {C_TYPES[kind]} {name}{f'[{count}]' if count else ''};")
    return "\n".join([*lines, "} gpu_metrics;", ""])

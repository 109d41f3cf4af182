"""The stub driver's state from Python: the same memory that nvmlstub.c reads and writes."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from energyopt.core.units import Hertz, Watts
from telemetry.control.plant import PowerCurve

MAGIC = 0x6E766D6C
CALLS = (
    *("init", "handle", "energy", "power", "fields", "limits", "set_limit", "clocks", "slow_ms"),
    *("temperature", "utilization", "reasons"),
)
ROOM = 16
MAX_GPUS = 16
THROTTLED = ("power_cap", "sync_boost", "thermal_sw", "thermal_hw", "power_brake")
"""The order of ``throttled_ns``."""


class Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 64),
        ("mig_uuid", ctypes.c_char * 64),
        ("name", ctypes.c_char * 64),
        ("bus", ctypes.c_char * 32),
        ("architecture", ctypes.c_uint32),
        ("average_mw", ctypes.c_uint32),
        ("module_mw", ctypes.c_uint32),
        ("c2c", ctypes.c_uint32),
        ("low_mw", ctypes.c_uint32),
        ("high_mw", ctypes.c_uint32),
        ("default_mw", ctypes.c_uint32),
        ("requested_mw", ctypes.c_uint32),
        ("enforced_cap_mw", ctypes.c_uint32),
        ("clock_low", ctypes.c_uint32),
        ("clock_high", ctypes.c_uint32),
        ("clock_max", ctypes.c_uint32),
        ("base_uj", ctypes.c_uint64),
        ("power_mw", ctypes.c_uint64),
        ("since_ns", ctypes.c_uint64),
        ("tick_ns", ctypes.c_uint64),
        ("memory_mw", ctypes.c_uint32),
        ("clock_sm", ctypes.c_uint32),
        ("clock_memory", ctypes.c_uint32),
        ("temperature", ctypes.c_uint32),
        ("memory_temperature", ctypes.c_uint32),
        ("busy", ctypes.c_uint32),
        ("memory_busy", ctypes.c_uint32),
        ("mig_count", ctypes.c_uint32),
        ("module_id", ctypes.c_uint32),
        ("reasons", ctypes.c_uint64),
        ("throttled_ns", ctypes.c_uint64 * len(THROTTLED)),
        ("rc", ctypes.c_int32 * ROOM),
        ("after", ctypes.c_uint32 * ROOM),
        ("calls", ctypes.c_uint32 * ROOM),
        ("persistence", ctypes.c_uint32),
        ("plant", ctypes.c_uint32),
        ("load_ppm", ctypes.c_uint32),
        ("locks", ctypes.c_uint32),
    )

    def fail(self, call: str, code: int, after: int = 0) -> None:
        """Let ``call`` return ``code`` after it has been called ``after`` more times; 0 heals it."""
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
        ("epoch", ctypes.c_uint32),
        ("field_offset_mj", ctypes.c_uint32),
        ("gpus", Gpu * MAX_GPUS),
    )

    def elapse(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.now_ns += round(seconds * 1e9)

    def set_power(self, index: int, watts: float) -> None:
        """Change a GPU's power now, keeping what it has used."""
        gpu = self.gpus[index]
        spent = (self.now_ns - gpu.since_ns) * gpu.power_mw // 1_000_000
        gpu.base_uj, gpu.since_ns, gpu.power_mw = gpu.base_uj + spent, self.now_ns, round(watts * 1e3)

    def set_load(self, index: int, load: float) -> None:
        """Make the GPU a plant under this load (0 to 1): its power follows clock and cap from now on."""
        gpu, curve = self.gpus[index], PowerCurve(top=Hertz(self.gpus[index].clock_max * 1e6))
        gpu.plant, gpu.load_ppm = 1, round(load * 1e6)
        ceiling = Hertz(min(gpu.clock_high or gpu.clock_max, gpu.clock_max) * 1e6)
        clock = curve.clock_under(Watts(gpu.requested_mw / 1e3), ceiling, load)
        gpu.clock_sm = round(clock / 1e6)
        self.set_power(index, curve.power(clock, load))
        gpu.average_mw = gpu.power_mw

    def joules(self, index: int) -> float:
        """What the GPU has used by now, to the microjoule: the truth, whatever its counter shows."""
        gpu = self.gpus[index]
        return float(gpu.base_uj + (self.now_ns - gpu.since_ns) * gpu.power_mw // 1_000_000) / 1e6


def create(path: Path, gpus: int = 1) -> State:
    """A machine of ``gpus`` H100-like boards at 300 W with a 100 ms tick, at virtual second 1000."""
    path.write_bytes(bytes(ctypes.sizeof(State)))
    state = attach(path)
    state.magic, state.count, state.now_ns = MAGIC, gpus, 1000 * 10**9
    for index in range(gpus):
        gpu = state.gpus[index]
        gpu.uuid = f"GPU-{index:08d}-0000-4000-8000-000000000000".encode()
        gpu.name, gpu.bus, gpu.architecture = b"Stub H100", f"00000000:{index + 1:02X}:00.0".encode(), 9
        gpu.low_mw, gpu.high_mw, gpu.default_mw, gpu.requested_mw = 200_000, 700_000, 650_000, 500_000
        gpu.power_mw, gpu.average_mw, gpu.since_ns, gpu.tick_ns = 300_000, 290_000, state.now_ns, 10**8
        gpu.base_uj, gpu.clock_max = 5 * 10**9, 1980
        gpu.clock_sm, gpu.clock_memory, gpu.temperature, gpu.memory_temperature = 1410, 2619, 54, 61
        gpu.persistence = 1
        gpu.busy, gpu.memory_busy, gpu.memory_mw = 90, 40, 42_000
    return state


def attach(path: Path) -> State:
    """The state of a file that exists, shared with every process that maps it."""
    with path.open("r+b") as file:
        return State.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(State)))

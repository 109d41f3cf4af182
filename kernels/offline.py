"""Compile a launch for a GPU that is not there, and read what it needs from the machine code.

``OfflineDriver`` answers Triton where it would ask a device, and turns the launch itself into nothing. A launcher run
under it with tensors on the ``meta`` device compiles exactly what it would compile on the target: same
specialisation, same block sizes, and the same refusal when the target's shared memory is too small. It gives
registers, spills and shared memory; it gives neither speed nor correctness.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

from .platform import ARCHS, Arch

_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled kernel takes: ``registers`` a thread, ``spills`` to memory (bytes of stack or scratch a
    thread) and ``shared`` bytes a program."""

    kernel: str
    registers: int
    spills: int
    shared: int


class _Utils:
    """The part of a driver that knows the device's limits and loads code."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._arch.shared_bytes}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[object, object, int, int, int]:
        return object(), object(), 0, 0, 1024

    def unload_module(self, module: object) -> None:
        return


class OfflineDriver(DriverBase):  # type: ignore[misc]
    """A Triton driver for one architecture. Triton caches kernels by device, so each architecture is a device of its
    own."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self.device = tuple(ARCHS).index(arch.name)
        self.utils = _Utils(arch)

    @staticmethod
    def is_active() -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        arch = self._arch
        if arch.is_amd:
            return GPUTarget("hip", arch.name, arch.warp)
        return GPUTarget("cuda", int(arch.name.removeprefix("sm_")), arch.warp)

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> str:
        return "meta"

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        raise RuntimeError("Nothing can be timed without a device.")

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None


@contextmanager
def offline(arch: Arch) -> Iterator[OfflineDriver]:
    """Make Triton compile for ``arch`` until the block ends. Not for use where a real device is in use."""
    ours = OfflineDriver(arch)
    before = driver._active
    driver.set_active(ours)
    try:
        yield ours
    finally:
        driver._active = before


def compiled_since(kernels: Sequence[Any], device: int, seen: set[int]) -> Iterator[Any]:
    """Kernels in ``kernels``' caches for ``device`` whose identity is not in ``seen``; adds them to it."""
    for function in kernels:
        for compiled in list(function.device_caches[device][0].values()):
            if id(compiled) not in seen:
                seen.add(id(compiled))
                yield compiled


def resources(compiled: Any) -> Resources:
    """Read one compiled kernel's needs from its machine code."""
    read = _read_nvidia if "cubin" in compiled.asm else _read_amd
    registers, spills = read(compiled.asm)
    return Resources(compiled.name, registers, spills, int(compiled.metadata.shared))


def _read_nvidia(asm: Any) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        listing = subprocess.run(
            [str(_CUOBJDUMP), "-res-usage", file.name], check=True, capture_output=True, text=True, timeout=60
        ).stdout
    figures = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", listing)}
    return figures["REG"], figures["STACK"] + figures["LOCAL"]


def _read_amd(asm: Any) -> tuple[int, int]:
    figures = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)", asm["amdgcn"])}
    return figures["vgpr_count"], figures["private_segment_fixed_size"]

"""Facts about GPU architectures, as tables: what a launch choice and a compile test need to know.

Says nothing about which choice is best (``launch``) and nothing about a particular card's clocks or power.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Literal

import torch

Vendor = Literal["nvidia", "amd", "none"]
Matrix = Literal["mma", "wgmma", "tcgen05", "mfma", "wmma", "none"]


@dataclass(frozen=True, slots=True)
class Arch:
    """One architecture.

    ``warp`` is the number of threads that run in step, ``shared_bytes`` the most on-chip memory one program may ask
    for, ``matrix`` the generation of the matrix unit, ``fp8`` the eight-bit format that the hardware multiplies or at
    least converts (None: neither), ``multiprocessors`` the count on the largest card sold with it.
    """

    name: str
    vendor: Vendor
    warp: int
    shared_bytes: int
    matrix: Matrix
    fp8: torch.dtype | None
    multiprocessors: int

    @property
    def is_amd(self) -> bool:
        return self.vendor == "amd"


_OCP, _FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz

# NVIDIA: CUDA C++ Programming Guide, compute capabilities (shared memory per block, opt-in). AMD: instruction set
# guides of CDNA 3 and 4 and RDNA (LDS per workgroup, wavefront size, fp8: FNUZ on CDNA 3, OCP from CDNA 4 and RDNA 4).
_TABLE = (
    Arch("sm_80", "nvidia", 32, 163 * 1024, "mma", None, 108),
    Arch("sm_86", "nvidia", 32, 99 * 1024, "mma", None, 84),
    Arch("sm_89", "nvidia", 32, 99 * 1024, "mma", _OCP, 142),
    Arch("sm_90", "nvidia", 32, 227 * 1024, "wgmma", _OCP, 132),
    Arch("sm_100", "nvidia", 32, 227 * 1024, "tcgen05", _OCP, 148),
    Arch("sm_103", "nvidia", 32, 227 * 1024, "tcgen05", _OCP, 160),
    Arch("sm_120", "nvidia", 32, 99 * 1024, "mma", _OCP, 188),
    Arch("gfx90a", "amd", 64, 64 * 1024, "mfma", None, 110),
    Arch("gfx942", "amd", 64, 64 * 1024, "mfma", _FNUZ, 304),
    Arch("gfx950", "amd", 64, 160 * 1024, "mfma", _OCP, 256),
    Arch("gfx1100", "amd", 32, 64 * 1024, "wmma", None, 96),
    Arch("gfx1201", "amd", 32, 64 * 1024, "wmma", _OCP, 64),
)
ARCHS = {arch.name: arch for arch in _TABLE}

INTERPRETER = Arch("interpreter", "none", 1, 1 << 30, "none", None, 1)
"""What stands in for a GPU when Triton interprets the kernels on the CPU."""


def arch_named(name: str) -> Arch:
    """The architecture called ``name``. Raises ValueError, with those known, for another."""
    try:
        return ARCHS[name]
    except KeyError as error:
        raise ValueError(f"Unknown GPU architecture {name!r}; known are {', '.join(ARCHS)}.") from error


class UnsupportedDeviceError(ValueError):
    """A device that no kernel can be compiled for; the message says what is needed."""


def arch_of(device: torch.device) -> Arch:
    """The architecture of ``device``; ``INTERPRETER`` for the CPU. A GPU that is not in the table gets the least that
    any of its kind has. Raises UnsupportedDeviceError for one that Triton has no matrix products for."""
    if device.type == "cpu":
        return INTERPRETER
    if device.type != "cuda":
        raise UnsupportedDeviceError(
            f"Kernels run on devices of type cuda (ROCm included) or cpu, not {device.type!r}."
        )
    properties = torch.cuda.get_device_properties(device)
    count = int(properties.multi_processor_count)
    if torch.version.hip:
        name = str(properties.gcnArchName).split(":")[0]
        return ARCHS.get(name) or _unknown_amd(name, count)
    name = f"sm_{properties.major}{properties.minor}"
    if properties.major < 8:
        raise UnsupportedDeviceError(f"A GPU of architecture {name} is too old for these kernels: sm_80 is the oldest.")
    return ARCHS.get(name) or Arch(name, "nvidia", 32, 99 * 1024, "mma", None, count)


def _unknown_amd(name: str, count: int) -> Arch:
    """GCN and CDNA (gfx9) have wavefronts of 64 threads, RDNA of 32; all have 64 KiB of LDS for a workgroup."""
    if name.startswith("gfx9"):
        return Arch(name, "amd", 64, 64 * 1024, "mfma", None, count)
    return Arch(name, "amd", 32, 64 * 1024, "wmma", None, count)


def name_of(dtype: torch.dtype) -> str:
    """``bfloat16`` and so on, as configurations and tables write it."""
    return str(dtype).removeprefix("torch.")


def multiprocessors(device: torch.device, arch: Arch) -> int:
    """How many this very device has; the table's figure where there is no device."""
    if device.type != "cuda":
        return arch.multiprocessors
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def triton_release() -> str | None:
    """The release of the Triton that kernels are compiled with; None without one, or with one that is broken.

    The module is asked, not the list of distributions: ROCm's wheels carry it as pytorch-triton-rocm and other names.
    """
    return str(importlib.import_module("triton").__version__) if triton_fault() is None else None


def triton_fault() -> str | None:
    """Why there is no Triton; None if there is."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install energyopt[gpu])"
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    return None

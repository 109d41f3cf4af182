"""Facts about GPU architectures, as tables: what a launch choice and a compile test need to know.

Says nothing about which choice is best (``launch``) and nothing about a particular card's clocks or power.
"""

from __future__ import annotations

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


def arch_of(device: torch.device) -> Arch:
    """The architecture of ``device``; ``INTERPRETER`` for the CPU. Raises ValueError for a GPU not in the table."""
    if device.type == "cpu":
        return INTERPRETER
    if device.type != "cuda":
        raise ValueError(f"Kernels run on devices of type cuda (ROCm included) or cpu, not {device.type!r}.")
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return arch_named(str(properties.gcnArchName).split(":")[0])
    return arch_named(f"sm_{properties.major}{properties.minor}")


def multiprocessors(device: torch.device, arch: Arch) -> int:
    """How many this very device has; the table's figure where there is no device."""
    if device.type != "cuda":
        return arch.multiprocessors
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

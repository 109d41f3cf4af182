"""How much memory is free, and what running out of it looks like."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from energyopt.core.errors import OutOfMemoryError
from energyopt.core.units import Bytes, bytes_from_kibibytes

_CPU_ALLOCATION_FAILED = ("can't allocate memory", "DefaultCPUAllocator", "not enough memory")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> Bytes:
    """Free memory of a GPU; for a CPU what the kernel can give without swapping, within this process's cgroup."""
    if device.type == "cuda":
        return Bytes(torch.cuda.mem_get_info(device)[0])
    return min(_machine_bytes(), _cgroup_bytes() or _machine_bytes())


def _machine_bytes() -> Bytes:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return bytes_from_kibibytes(int(line.split()[1]))
    raise OSError("/proc/meminfo has no line MemAvailable")


def _cgroup_bytes() -> Bytes | None:
    """What the root cgroup of a container leaves, None without a limit."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else Bytes(max(0, int(limit) - used))


def lazy_pages(size: int) -> mmap.mmap:
    """``size`` zeroed bytes (at least one) that cost nothing until they are written; huge pages where there are any.

    Private pages: the system gives huge ones to shared memory only where somebody set it up so. Raises MemoryError.
    """
    try:
        memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{size} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages gives small ones
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@contextmanager
def foreign_memory_errors(what: str) -> Iterator[None]:
    """Map every way in which torch and Python run out of memory to OutOfMemoryError: "<what> did not fit ..."."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemoryError(f"{what} did not fit into memory.") from error
    except RuntimeError as error:
        if any(sign in str(error) for sign in _CPU_ALLOCATION_FAILED):
            raise OutOfMemoryError(f"{what} did not fit into memory.") from error
        raise

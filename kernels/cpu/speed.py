"""What the native kernels reach on this machine by number of threads: what is chosen from, and what `doctor` shows."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from .program import check

READ_BYTES = 64 << 20
"""Beyond most caches, and filled in a tenth of a second."""
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes read from memory and integer operations of the product, per second, with ``threads`` threads."""

    threads: int
    read: float
    operations: float

    def __str__(self) -> str:
        count = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{count}: {self.read / 1e9:.1f} GB/s, {self.operations / 1e9:.0f} Gop/s"


def measure(library: ctypes.CDLL, threads: int, seconds: float = 0.1, read_bytes: int = READ_BYTES) -> Speed:
    """The best of what fits into ``seconds`` for each of the two; the machine's other work counts against it.

    Raises NativeError (threads that cannot be started) or MemoryError.
    """
    read, operations = ctypes.c_double(), ctypes.c_double()
    check(library, library.native_read_rate(read_bytes, threads, seconds, ctypes.byref(read)))
    check(library, library.native_product_rate(threads, seconds, ctypes.byref(operations)))
    return Speed(threads, read.value, operations.value)


def numa_nodes(folder: Path = _NODES) -> int:
    """How many memories this machine has; 1 where the system does not say."""
    return max(1, sum(1 for _ in folder.glob("node[0-9]*")))

"""What a bad day brings: disks that are full or fail, memory that ends, clocks that jump, links that lose packets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


class SmallDisk:
    """A file system of ``size`` bytes in memory, mounted at ``folder``."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self._filler = folder, folder / "filler"
        folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))

    def fill(self) -> None:
        """Leave not one page."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def read_only(self, *, on: bool) -> None:
        """As a kernel does that has seen its disk fail; files open for writing stay so, as there."""
        _run("mount", "-o", f"remount,{'ro' if on else 'rw'}", str(self.folder))

    def close(self) -> None:
        _run("umount", "--lazy", str(self.folder))


def corrupt(folder: Path) -> int:
    """Turn bits in the middle of every file; how many files there were."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size > 64]
    for path in files:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0xFF]))
    return len(files)


class Memory:
    """A control group that may hold ``limit`` bytes, of either version of the kernel's interface."""

    def __init__(self, name: str, limit: int) -> None:
        old = CGROUPS / "memory"
        self._folder = (old if old.is_dir() else CGROUPS) / name
        self._folder.mkdir()
        self._limit = self._folder / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")
        self.allow(limit)

    def allow(self, limit: int) -> None:
        self._limit.write_text(str(limit))

    @property
    def before(self) -> tuple[str, ...]:
        """Put before a command, it runs inside."""
        return ("sh", "-c", f'echo $$ > {self._folder}/cgroup.procs && exec "$@"', "sh")

    def close(self) -> None:
        self._folder.rmdir()


class WallClock:
    """A clock on the wall that others may set; monotonic time goes on as it should. Needs libfaketime."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Show this much more than the true time from now on."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self._file)


def faketime() -> Path | None:
    """Debian's libfaketime, where it is installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[-1] if found else None


@contextmanager
def namespace(name: str) -> Iterator[None]:
    """A network of its own, by this name."""
    _run("ip", "netns", "add", name)
    try:
        yield
    finally:
        _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30, capture_output=True)

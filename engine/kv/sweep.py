"""Keeps a folder of block files below its size, together with every other process that writes to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".kv"
_PARTIAL = ".tmp"
_ABANDONED = 3600.0
"""Seconds after which a half-written file belongs to a process that died."""

_LEAVE = 0.9
"""Share of the limit that a sweep leaves, so that the next one is not due at once."""

_LOOK_AGAIN = 0.05
"""Share of the limit that a process writes before it looks what others wrote."""

_PAGE = 4096


class _Found(NamedTuple):
    used: float
    size: int
    path: str


class Sweeper:
    """Removes the blocks that were not used for longest. Counts sizes in whole pages.

    With P processes the folder may exceed ``limit`` for a moment by their writes between two looks, P x 5%; a process
    that knows it to be more than 5% above writes nothing. Raises OSError where the folder cannot be read. Thread-safe.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.evicted = 0
        self._folder = folder
        self._limit = limit
        self._total = sum(found.size for found in _scan(folder))
        self._unseen = 0
        self._lock = threading.Lock()

    def room_for(self, size: int) -> bool:
        """Whether a file of ``size`` may be written, after making room if that is due."""
        size = _pages(size)
        with self._lock:
            if self._total + size > self._limit or self._unseen > _LOOK_AGAIN * self._limit:
                self._sweep(size)
            return self._total + size <= (1 + _LOOK_AGAIN) * self._limit

    def wrote(self, size: int) -> None:
        with self._lock:
            self._total += _pages(size)
            self._unseen += _pages(size)

    def _sweep(self, size: int) -> None:
        """One process at a time; the others go on and find it done the next time."""
        lock = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        else:
            self._evict(size)
        finally:
            os.close(lock)

    def _evict(self, size: int) -> None:
        files = sorted(_scan(self._folder))
        total = sum(found.size for found in files)
        if total + size > self._limit:
            target = max(0.0, _LEAVE * self._limit - size)
            for found in files:
                if total <= target:
                    break
                _remove(found.path)
                total -= found.size
                self.evicted += 1
        self._total, self._unseen = total, 0


def _scan(folder: Path) -> Iterator[_Found]:
    """Every block file of every layout. Leftovers of processes that died are removed on the way."""
    for layout in _entries(folder, "kv1-"):
        for shard in _entries(layout.path):
            for entry in _entries(shard.path):
                found = _look(entry)
                if found is not None:
                    yield found


def _entries(folder: Path | str, prefix: str = "") -> list[os.DirEntry[str]]:
    """The sub-entries of a directory; none if another process removed it, or if it is none."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _look(entry: os.DirEntry[str]) -> _Found | None:
    """Use, size and place of a block file, a partial one included; None for anything else."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None  # another process swept it away
    if stat.S_ISDIR(found.st_mode) or not entry.name.endswith((SUFFIX, _PARTIAL)):
        return None
    if entry.name.endswith(_PARTIAL) and time.time() - found.st_mtime > _ABANDONED:
        _remove(entry.path)
        return None
    return _Found(found.st_mtime, _pages(found.st_size), entry.path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.unlink(path)


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE

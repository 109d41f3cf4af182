"""The disk tier: a folder of block files that outlives the process and that several processes may share.

``<folder>/kv1-<layout>/<hh>/<key>.kv``; the file system is the index. The folder is private to its user: who may
write to it may make engines read blocks of his choice.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from energyopt.core.errors import ConfigError

from .block_file import HEADER_BYTES, LONGEST_KEY, header, layout_digest, read_block, write_block
from .block_store import Got, Put, StoreDownError
from .sweep import SUFFIX, Sweeper

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskStore:
    """Blocks of one layout in ``folder``, which together with other layouts there stays below ``limit`` bytes.

    Satisfies ``BlockStore``. Raises ConfigError for a folder that cannot be used or that everybody may write to.
    """

    def __init__(self, folder: Path, layout: str, limit: int, block_bytes: int) -> None:
        if limit < block_bytes + HEADER_BYTES:
            raise ConfigError(f"The disk tier has no room: it is {limit} bytes, and one KV block takes {block_bytes}.")
        self._layout = layout_digest(layout)
        self._home = folder / f"kv1-{self._layout.hex()}"
        _prepare(folder, self._home)
        self._sweeper = Sweeper(folder, limit)

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        with _mapped(self._home):
            return [self._path(key).exists() for key in keys]

    def get(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> Sequence[Got]:
        return [self._get(key, view) for key, view in zip(keys, into, strict=True)]

    def put(self, keys: Sequence[bytes], blocks: Sequence[memoryview], checksums: Sequence[int]) -> Sequence[Put]:
        return [self._put(*item) for item in zip(keys, blocks, checksums, strict=True)]

    def evicted(self) -> int:
        return self._sweeper.evicted

    def reset(self) -> None:
        with _mapped(self._home):
            for path in self._home.glob(f"*/*{SUFFIX}"):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing to end: every file is published when it is written."""

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._home / name[:2] / f"{name}{SUFFIX}"

    def _get(self, key: bytes, into: memoryview) -> Got:
        path = self._path(key)
        got = read_block(path, self._layout, key, into)
        try:
            if got is Got.WHOLE:
                os.utime(path)
            elif got is Got.CORRUPT:
                path.unlink()  # what a directory of this name would refuse
        except OSError:
            return got  # evicted meanwhile, or not ours to remove; it stays unreadable
        return got

    def _put(self, key: bytes, block: memoryview, check: int) -> Put:
        if len(key) > LONGEST_KEY:
            raise StoreDownError(f"A key of {len(key)} bytes does not fit into a block file.")
        with _mapped(self._home):
            return self._write(self._path(key), header(self._layout, key, len(block), check), block)

    def _write(self, path: Path, head: bytes, block: memoryview) -> Put:
        if path.exists():
            return Put.KNOWN
        size = len(head) + len(block)
        if not self._sweeper.room_for(size):
            return Put.FULL
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_block(path, head, block)
        except OSError as error:
            if error.errno in _FULL:
                return Put.FULL
            raise
        self._sweeper.wrote(size)
        return Put.STORED


@contextmanager
def _mapped(home: Path) -> Iterator[None]:
    """What the file system refuses means that the store is down."""
    try:
        yield
    except OSError as error:
        raise StoreDownError(f"{home} cannot be used: {error.strerror}.") from error


def _prepare(folder: Path, home: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The disk tier's folder {folder} cannot be used: {error.strerror}.") from error
    if mode & stat.S_IWOTH:
        raise ConfigError(f"The disk tier's folder {folder} may be written by everybody: take a folder of your own.")

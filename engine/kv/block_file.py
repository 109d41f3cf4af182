"""One KV block as a file: a checked header, the bytes, published under its name only when whole.

A reader trusts nothing it finds: type, size, header, owner's key and layout, and the content's checksum must all be
right. A power cut may leave a torn file, since nothing is flushed: the checksum finds it.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from .block_store import Got
from .checksum import checksum

MAGIC = b"EOPTKV\x00\x01"
"""The last byte is the version of this format."""

LONGEST_KEY = 46
_HEADER = struct.Struct(f"<8s16sH{LONGEST_KEY}sQQ")
_CHECK = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size + _CHECK.size
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def layout_digest(layout: str) -> bytes:
    """16 bytes for a layout's name, whatever characters it has."""
    return xxh3_128_digest(layout.encode())


def header(layout: bytes, key: bytes, size: int, check: int) -> bytes:
    """The header of a block of ``size`` bytes. ``layout`` is a ``layout_digest``."""
    fields = _HEADER.pack(MAGIC, layout, len(key), key, size, check)
    return fields + _CHECK.pack(xxh3_64_intdigest(fields))


def write_block(path: Path, head: bytes, block: memoryview) -> None:
    """Write beside ``path``, then rename: no reader ever sees a part. Raises OSError, and leaves nothing behind."""
    partial = path.with_name(f".{path.stem}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    descriptor = os.open(partial, _CREATE, 0o600)
    try:
        try:
            _write_all(descriptor, head, block)
        finally:
            os.close(descriptor)
        os.rename(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_block(path: Path, layout: bytes, key: bytes, into: memoryview) -> Got:
    """Fill ``into`` with the block's bytes, if they are all right. Never raises for what a file may hold."""
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return Got.MISSING
    except OSError:  # a symbolic link, a directory, no permission: not a file that this class wrote
        return Got.CORRUPT
    try:
        return _read(descriptor, layout, key, into)
    except OSError:  # the disk cannot read it back
        return Got.CORRUPT
    finally:
        os.close(descriptor)


def _read(descriptor: int, layout: bytes, key: bytes, into: memoryview) -> Got:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size != HEADER_BYTES + len(into):
        return Got.CORRUPT
    head = bytearray(HEADER_BYTES)
    if not _read_all(descriptor, memoryview(head)) or not _read_all(descriptor, into):
        return Got.CORRUPT
    check = checksum(into)
    return Got.WHOLE if bytes(head) == header(layout, key, len(into), check) else Got.CORRUPT


def _read_all(descriptor: int, into: memoryview) -> bool:
    while into:
        count = os.readv(descriptor, [into])
        if not count:
            return False
        into = into[count:]
    return True


def _write_all(descriptor: int, head: bytes, block: memoryview) -> None:
    parts = [memoryview(head), block]
    while parts:
        count = os.writev(descriptor, parts)
        while parts and count >= len(parts[0]):
            count -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][count:]

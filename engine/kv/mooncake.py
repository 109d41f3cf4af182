"""Mooncake Store as a block store: memory of many engines as one pool, over TCP or RDMA.

Blocks go through two registered buffers of this class, so that callers' memory needs no registration; each value ends
with its checksum. The library reconnects by itself once it has been connected; until then every call tries anew.
Nothing is encrypted or authenticated: the pool belongs on a network of your own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from energyopt.core.errors import ConfigError

from .block_file import layout_digest
from .block_store import Got, Put, StoreDownError
from .checksum import CHECKSUM_BYTES, checksum

DEFAULT_PORT = 50051
_BATCH = 16
"""Blocks that one call moves."""

_CONNECT_PATIENCE = 2.0
"""Seconds that a master has to accept a connection."""

_GRAIN = 16 << 20
"""Segments are whole multiples of this."""

_UNREACHABLE, _NO_ROOM, _EXISTS = -900, -200, -705
"""The library's codes for: the master does not answer; no segment has room; somebody else was faster."""

_SETTINGS = {"MC_LOG_LEVEL": "ERROR", "MC_STORE_CLIENT_SETUP_RETRIES": "2"}
"""Unless the user's environment says otherwise. The library's own 20 retries hold a first call up for 90 s."""

_TRAILER = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class MooncakeAddress:
    """Where the pool is. ``host`` is this machine as its peers reach it."""

    master: str
    metadata: str
    host: str
    protocol: str = "tcp"
    devices: str = ""

    @classmethod
    def parse(cls, url: str) -> MooncakeAddress:
        """``mooncake://MASTER[:PORT][?metadata=URL][&host=NAME][&protocol=tcp|rdma][&devices=NAME]``.

        The metadata server is by default the one that the master runs at port 8080. Raises ConfigError.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise ConfigError(f"{url!r} has no valid port: {error}.") from error
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        unknown = options.keys() - {"metadata", "host", "protocol", "devices"}
        if parts.scheme != "mooncake" or not parts.hostname or unknown or parts.path not in ("", "/"):
            raise ConfigError(
                f"{url!r} is not a pool's address: expected mooncake://MASTER[:PORT] "
                "with ?metadata=, host=, protocol= and devices= as options."
            )
        return cls(
            master=f"{parts.hostname}:{port}",
            metadata=options.get("metadata", f"http://{parts.hostname}:8080/metadata"),
            host=options.get("host", "127.0.0.1"),
            protocol=options.get("protocol", "tcp"),
            devices=options.get("devices", ""),
        )


class MooncakeStore:
    """Blocks of one layout in the pool, to which this process lends ``segment_bytes`` of its memory.

    Satisfies ``BlockStore``. A master that is not there yet is no error: calls raise StoreDownError until it is.
    Raises ConfigError where the library is not installed.
    """

    def __init__(self, address: MooncakeAddress, layout: str, segment_bytes: int, block_bytes: int) -> None:
        self._new_client = _library()
        self._address = address
        self._prefix = f"energyopt/{layout_digest(layout).hex()}/"
        self._segment_bytes = -(-segment_bytes // _GRAIN) * _GRAIN
        self._client: Any = None
        self._closed = False
        self._connecting = threading.Lock()
        self._reads, self._writes = _Bounce(block_bytes), _Bounce(block_bytes)

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        client = self._connected()
        return [code == 1 for code in self._call(client.batch_is_exist, self._names(keys))]

    def get(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> Sequence[Got]:
        client = self._connected()
        ends: list[Got] = []
        for at in range(0, len(keys), _BATCH):
            some, views = keys[at : at + _BATCH], into[at : at + _BATCH]
            with self._reads.places(len(some)) as (pointers, sizes):
                codes = self._call(client.batch_get_into, self._names(some), pointers, sizes)
                for place, (code, view) in enumerate(zip(codes, views, strict=True)):
                    ends.append(self._reads.take(place, code, view))
        return ends

    def put(self, keys: Sequence[bytes], blocks: Sequence[memoryview], checksums: Sequence[int]) -> Sequence[Put]:
        client = self._connected()
        known = self.contains(keys)
        new = [item for item, there in zip(zip(keys, blocks, checksums, strict=True), known, strict=True) if not there]
        ends: list[Put] = []
        for at in range(0, len(new), _BATCH):
            some = new[at : at + _BATCH]
            with self._writes.places(len(some)) as (pointers, sizes):
                for place, (_, block, check) in enumerate(some):
                    self._writes.give(place, block, check)
                names = self._names([key for key, _, _ in some])
                ends += [_put_end(code) for code in self._call(client.batch_put_from, names, pointers, sizes)]
        written = iter(ends)
        return [Put.KNOWN if there else next(written) for there in known]

    def evicted(self) -> int:
        """The master evicts, for everybody; this process never does."""
        return 0

    def reset(self) -> None:
        code = self._connected().remove_by_regex(f"^{self._prefix}", True)
        if code < 0:
            raise StoreDownError(f"The pool at {self._address.master} did not forget its blocks: code {code}.")

    def discard(self, prefix: bytes) -> None:
        """Forget every block whose key begins so."""
        code = self._connected().remove_by_regex(f"^{self._prefix}{prefix.hex()}", True)
        if code < 0:
            raise StoreDownError(f"The pool at {self._address.master} did not remove blocks: code {code}.")

    def close(self) -> None:
        with self._connecting:
            client, self._client, self._closed = self._client, None, True
        if client is not None:
            client.close()

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return [self._prefix + key.hex() for key in keys]

    def _connected(self) -> Any:
        """The client, connected now if it was not before."""
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        if self._closed:
            raise StoreDownError("The pool's client is closed.")
        _knock(self._address.master)
        client, address = self._new_client(), self._address
        code = client.setup(
            address.host,
            address.metadata,
            self._segment_bytes,
            _GRAIN,
            address.protocol,
            address.devices,
            address.master,
        )
        if code:
            raise StoreDownError(f"The pool at {address.master} cannot be joined: code {code}.")
        for bounce in (self._reads, self._writes):
            if code := client.register_buffer(bounce.address, bounce.size):
                raise StoreDownError(f"A buffer for the pool cannot be registered: code {code}.")
        return client

    def _call(self, method: Callable[..., list[int]], names: list[str], *more: list[int]) -> list[int]:
        """A batch call's codes. Raises StoreDownError if the master did not answer."""
        codes = list(method(names, *more)) if names else []
        if len(codes) != len(names) or _UNREACHABLE in codes:
            raise StoreDownError(f"The pool's master at {self._address.master} does not answer.")
        return codes


class _Bounce:
    """A buffer at a fixed address with places for ``_BATCH`` blocks and their checksums; one user at a time."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._place_bytes = -(-(block_bytes + CHECKSUM_BYTES) // 64) * 64
        self.size = self._place_bytes * _BATCH
        self._memory = mmap.mmap(-1, self.size)
        self._view = memoryview(self._memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def places(self, count: int) -> Iterator[tuple[list[int], list[int]]]:
        """Addresses and sizes of the first ``count`` places."""
        with self._lock:
            pointers = [self.address + place * self._place_bytes for place in range(count)]
            yield pointers, [self._block_bytes + CHECKSUM_BYTES] * count

    def give(self, place: int, block: memoryview, check: int) -> None:
        at = place * self._place_bytes
        self._view[at : at + self._block_bytes] = block
        _TRAILER.pack_into(self._view, at + self._block_bytes, check)

    def take(self, place: int, code: int, into: memoryview) -> Got:
        """Copy a block out; ``code`` is what reading it returned: its size, or below 0."""
        if code < 0:
            return Got.MISSING
        at = place * self._place_bytes
        into[:] = self._view[at : at + self._block_bytes]
        (check,) = _TRAILER.unpack_from(self._view, at + self._block_bytes)
        whole = code == self._block_bytes + CHECKSUM_BYTES and checksum(into) == check
        return Got.WHOLE if whole else Got.CORRUPT


def _knock(master: str) -> None:
    """Fail at once where nobody listens; the library would try for seconds."""
    host, _, port = master.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_PATIENCE).close()
    except OSError as error:
        raise StoreDownError(f"The pool's master at {master} cannot be reached: {error}.") from error


def _put_end(code: int) -> Put:
    if code == _EXISTS:
        return Put.KNOWN
    if code == _NO_ROOM:
        return Put.FULL
    if code:
        raise StoreDownError(f"The pool did not take a block: code {code}.")
    return Put.STORED


def _library() -> Callable[[], Any]:
    """The client's class. The library is loaded here, not at import: it is optional and reads its settings then."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        library = importlib.import_module("mooncake.store")
    except ImportError as error:
        raise ConfigError(
            f"A shared KV pool needs Mooncake Store's client, which cannot be loaded ({error}): "
            "pip install 'energyopt[mooncake]', and Debian's libibverbs1 librdmacm1 libnuma1 liburing2."
        ) from error
    client: Callable[[], Any] = library.MooncakeDistributedStore
    return client

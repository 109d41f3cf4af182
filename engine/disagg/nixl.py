"""Memory that other processes read by NIXL: over InfiniBand, TCP or what else UCX finds between two hosts.

The library is optional and loaded when it is asked for. Neither side copies in Python; a peer gets the keys of one
region and nothing else. Nothing runs in the background: whoever waits calls ``progress``, as some of UCX's ways move
bytes only while both ends do. Block contents are in the memory of the host; the wheels know GPUs too.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from energyopt.core.errors import ConfigError

from .errors import HandOverError, Reason

BACKEND = "UCX"
PACE = 1e-4
"""Seconds between two looks at a transfer that has not ended."""

_PLACE = struct.Struct("<QQ")


class NixlAgent:
    """One for each engine. Any thread. Satisfies ``ports.MemoryAgent``. Raises ConfigError without the library."""

    def __init__(self, name: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._api, self._errors = _library()
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[int, tuple[memoryview, Any]] = {}
        self._peers: dict[bytes, str] = {}
        self._stuck: list[tuple[Any, Sequence[memoryview]]] = []
        try:
            settings = self._api.nixl_agent_config(enable_prog_thread=False, backends=[BACKEND])
            self._agent = self._api.nixl_agent(name, settings)
        except self._errors as error:
            raise ConfigError(f"NIXL does not start with {BACKEND}: {type(error).__name__}: {error}.") from error

    def register(self, memory: memoryview) -> bytes:
        """Take part with ``memory``, writable, until ``withdraw``; what a peer must have to read it."""
        place = _address(memory)
        with self._typed(), self._lock:
            held = self._agent.register_memory([(place, memory.nbytes, 0, "")], "DRAM", [BACKEND])
            self._open[place] = memory, held
            keys = self._agent.get_partial_agent_metadata(held, True, [BACKEND])
        return _PLACE.pack(place, memory.nbytes) + bytes(keys)

    def withdraw(self, memory: memoryview) -> None:
        """Memory that a transfer may write yet stays registered, and is used for nothing else."""
        if any(view.obj is memory.obj for _, views in self._stuck for view in views):
            return
        with self._typed(), self._lock:
            _, held = self._open.pop(_address(memory), (None, None))
            if held is not None:
                self._agent.deregister_memory(held, [BACKEND])

    def read(self, ticket: bytes, into: Sequence[memoryview], patience: float) -> None:
        """Fill ``into``, parts of registered memory, one after the other from the beginning of a peer's region."""
        if len(ticket) <= _PLACE.size:
            raise HandOverError(Reason.PROTOCOL, "What came is no description of memory.")
        place, size = _PLACE.unpack_from(ticket)
        if sum(view.nbytes for view in into) > size:
            raise HandOverError(Reason.PROTOCOL, f"The peer's memory has {size} bytes, fewer than the blocks.")
        far, at = [], place
        for view in into:
            far.append((at, view.nbytes, 0))
            at += view.nbytes
        near = [(_address(view), view.nbytes, 0) for view in into]
        with self._typed():
            with self._lock:
                if ticket not in self._peers:
                    self._peers[ticket] = self._agent.add_remote_agent(ticket[_PLACE.size :])
                ends = (self._agent.get_xfer_descs(one, "DRAM") for one in (near, far))
                transfer = self._agent.initialize_xfer("READ", *ends, self._peers[ticket])
                state = self._agent.transfer(transfer)
            self._finish(transfer, state, into, self._now() + patience)

    def forget(self, ticket: bytes) -> None:
        """The peer's region is not read any more."""
        with self._typed(), self._lock:
            peer = self._peers.pop(ticket, None)
            if peer is not None and peer not in self._peers.values():
                self._agent.remove_remote_agent(peer)

    def progress(self) -> None:
        """Let what peers read go on."""
        with self._typed(), self._lock:
            self._agent.get_new_notifs()

    def _finish(self, transfer: Any, state: str, into: Sequence[memoryview], until: float) -> None:
        while state == "PROC" and self._now() < until:
            time.sleep(PACE)
            with self._lock:
                state = self._agent.check_xfer_state(transfer)
        if state == "PROC":
            self._stuck.append((transfer, into))
            raise HandOverError(Reason.TIMEOUT, "The peer's memory was not read in time.")
        with self._lock:
            transfer.release()
        if state != "DONE":
            raise HandOverError(Reason.UNREACHABLE, "The peer's memory cannot be read any more.")

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise HandOverError(Reason.UNREACHABLE, f"NIXL failed: {type(error).__name__}: {error}.") from error


def _library() -> tuple[Any, tuple[type[Exception], ...]]:
    """NIXL's Python API, and its exceptions, which have no base of their own."""
    try:
        importlib.import_module("nixl")  # the package for CUDA 12, 13 or ROCm, whichever is installed
        api = importlib.import_module("nixl._api")
        bindings = importlib.import_module("nixl._bindings")
    except (ImportError, OSError) as error:
        raise ConfigError(f"Transfers by nixl need its package, pip install 'energyopt[nixl]': {error}.") from error
    kinds = (kind for kind in vars(bindings).values() if isinstance(kind, type) and issubclass(kind, Exception))
    return api, (*kinds, RuntimeError)


def _address(memory: memoryview) -> int:
    return ctypes.addressof((ctypes.c_char * memory.nbytes).from_buffer(memory))

"""The way of one request's outputs from the engine's thread into an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from .detokenize import Detokenizer
from .output import Output
from .request import Request

Parcel = Output | Exception


class Stream:
    """Made in the event loop that will read it. Only ``deliver`` puts something in, only the reader takes out."""

    def __init__(self, request: Request, detokenizer: Detokenizer) -> None:
        self.request = request
        self.detokenizer = detokenizer
        self.loop = asyncio.get_running_loop()
        self._parcels: asyncio.Queue[Parcel] = asyncio.Queue()

    async def next(self) -> Output:
        """The next output; raises what was delivered instead of one."""
        parcel = await self._parcels.get()
        if isinstance(parcel, Exception):
            raise parcel
        return parcel

    def put(self, parcel: Parcel) -> None:
        """Called in the stream's own loop."""
        self._parcels.put_nowait(parcel)


def deliver(parcels: Iterable[tuple[Stream, Parcel]]) -> list[Stream]:
    """Hand parcels over, waking each event loop once; returns the streams whose loop is closed. Any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Parcel]]] = {}
    for stream, parcel in parcels:
        by_loop.setdefault(stream.loop, []).append((stream, parcel))
    lost: list[Stream] = []
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, group)
        except RuntimeError:
            # asyncio's word for a loop that was closed: its readers are gone, and they are the only ones concerned.
            lost += [stream for stream, _ in group]
    return lost


def _put_all(group: list[tuple[Stream, Parcel]]) -> None:
    for stream, parcel in group:
        stream.put(parcel)

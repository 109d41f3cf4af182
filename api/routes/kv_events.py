"""``GET /kv/events``: what becomes of cached blocks, as it happens, for routers (Server-Sent Events).

Each event's data is a JSON object. The first says how blocks are named; the others are batches in the form of vLLM's
KV events: ``BlockStored``, ``BlockRemoved``, ``AllBlocksCleared``, with ``medium`` GPU or CPU. Names are hexadecimal.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from energyopt.core.errors import NotFoundError, UsageError
from engine.kv.events import Kind, KvEvent
from engine.kv_feed import KvEventFeed, KvNews

from ..deps import ServicesDep
from ..services import Services

router = APIRouter()

NAMING = "energyopt-kv-block-1"
"""BLAKE2b of 16 bytes over the parent's hash and the block's token ids; see ``engine.kv.hashing``."""
MEDIA = {"device": "GPU", "host": "CPU"}
NAMES_A_FRAME = 4096
"""Names in one event, so that a listing of a large cache is no large event."""
_ID = re.compile(r"([0-9a-f]{1,32}):([0-9]{1,18})")


@router.get("/kv/events", response_class=StreamingResponse)
async def kv_events(
    services: ServicesDep,
    last_event_id: Annotated[str | None, Header(max_length=60)] = None,
    after: Annotated[str | None, Query(max_length=60, description="As Last-Event-ID, which goes before it.")] = None,
) -> Response:
    """Batches after the one that was seen last, while they are kept; else everything anew, beginning with a clearing.

    Asks for the operator's key, if there is one. 404 from an engine without such events.
    """
    if services.kv_events is None:
        raise NotFoundError("This engine does not tell what becomes of its cache.")
    epoch, number = _seen(last_event_id or after)
    frames = _frames(services, services.kv_events, epoch, number)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(frames, media_type="text/event-stream", headers=headers)


def _seen(text: str | None) -> tuple[str | None, int]:
    if not text:
        return None, 0
    match = _ID.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not the id of a batch: expected one that an event carried.")
    return match[1], int(match[2])


async def _frames(services: Services, feed: KvEventFeed, epoch: str | None, number: int) -> AsyncGenerator[bytes]:
    (block_size, unit), model = feed.naming, services.model_names[0]
    hello = {"type": "hello", "naming": NAMING, "model": model, "block_size": block_size, "hash_unit": unit}
    yield b"data: %b\n\n" % json.dumps(hello).encode()
    async with aclosing(feed.read(epoch, number)) as news:
        async for one in news:
            if one is None and not services.engine.alive:
                return
            if one is None:
                yield b": nothing new\n\n"
            else:
                for frame in frames_of(one, block_size):
                    yield frame


def frames_of(news: KvNews, block_size: int) -> list[bytes]:
    """A batch as one or more server-sent events; the last one carries its id, so that none is half seen."""
    events = [shown for event in news.batch.events for shown in _shown(event, block_size)]
    frames: list[bytes] = []
    stamp = time.time()
    parts = _parted(events)
    for place, part in enumerate(parts):
        number = f"{news.epoch}:{news.batch.number}"
        head = f"id: {number}\n" if place == len(parts) - 1 else ""
        body: dict[str, object] = {"type": "batch", "ts": stamp, "epoch": news.epoch, "seq": news.batch.number}
        body["events"] = part
        if not head:
            body["more"] = True
        frames.append(f"{head}data: {json.dumps(body, separators=(',', ':'))}\n\n".encode())
    return frames


def _parted(events: list[dict[str, object]]) -> list[list[dict[str, object]]]:
    """One event of many names, or several of few, to a part; at least one part."""
    parts: list[list[dict[str, object]]] = [[]]
    size = 0
    for event in events:
        names = event.get("block_hashes")
        size += 1 + (len(names) if isinstance(names, list) else 0)
        if parts[-1] and size > NAMES_A_FRAME:
            parts.append([])
            size = 0
        parts[-1].append(event)
    return parts


def _shown(event: KvEvent, block_size: int) -> list[dict[str, object]]:
    medium = MEDIA.get(event.tier, event.tier)
    if event.kind is Kind.CLEARED:
        return [{"type": "AllBlocksCleared", "medium": medium}]
    kind = "BlockStored" if event.kind is Kind.STORED else "BlockRemoved"
    size = {"block_size": block_size} if event.kind is Kind.STORED else {}
    names = [name.hex() for name in event.names]
    return [
        {
            "type": kind,
            "block_hashes": names[at : at + NAMES_A_FRAME],
            "medium": medium,
            "group_idx": event.group,
            **size,
        }
        for at in range(0, len(names), NAMES_A_FRAME)
    ]

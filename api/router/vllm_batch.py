"""vLLM's KV events, out of the bytes that it publishes: MessagePack, written by msgspec.

A batch is an array (time, events, rank), or a map with its ``events``. An event is a map with its kind under ``type``;
older versions, and SGLang, write an array that begins with its kind. All are read; fields that are not known are let
through.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from energyopt.core.errors import ConfigError
from engine.routing.foreign import Hash

from .errors import BackendError

LONGEST = 64 << 20
"""Bytes of one message: a batch of a step is some kilobytes."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_TIERS = {"GPU": "device", "CPU": "host", "STORAGE": "disk", None: "device"}


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks of ``tokens`` behind ``parent`` are kept in ``tier``."""

    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: tuple[int, ...]
    block_tokens: int
    tier: str


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks are no longer kept in ``tier``."""

    hashes: tuple[Hash, ...]
    tier: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is kept any more."""


Event = Stored | Removed | Cleared


def optional_module(name: str, package: str) -> ModuleType:
    """A module that only whoever follows vLLM's events needs. Raises ConfigError saying what installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"kv_events_endpoint needs {package}, which is not installed: pip install 'energyopt[vllm-events]'."
        ) from error


def events_of(payload: bytes) -> list[Event]:
    """What concerns plain prompts: blocks of adapters, of images and of salted caches hold more than their tokens say.

    Raises BackendError for what is no batch, ConfigError without msgpack.
    """
    unpack = optional_module("msgpack", "msgpack").unpackb
    try:
        batch = unpack(payload, strict_map_key=False)
        named = {"events": batch[1]} if isinstance(batch, list) and len(batch) > 1 else batch
        events = named.get("events") if isinstance(named, dict) else None
        if not isinstance(events, list):
            raise BackendError("A KV event batch is no array of a time and events, and no map of them.")
        return [found for event in events if (found := _event(_named(event))) is not None]
    except (ValueError, TypeError, RecursionError) as error:
        raise BackendError(f"A KV event batch cannot be read: {error}.") from error


def _named(event: object) -> Mapping[str, object]:
    """An event's fields by name, ``type`` included."""
    if isinstance(event, dict):
        return event
    if isinstance(event, list) and event and isinstance(event[0], str) and event[0] in _FIELDS:
        return {"type": event[0], **dict(zip(_FIELDS[event[0]], event[1:], strict=False))}
    return {}


def _event(fields: Mapping[str, object]) -> Event | None:
    medium = fields.get("medium")
    tier = _TIERS.get(medium if isinstance(medium, str) else None)
    if fields.get("group_idx") or tier is None:
        return None
    match fields.get("type"):
        case "BlockStored" if _is_plain(fields):
            size = _whole(fields.get("block_size"))
            return Stored(
                _hashes(fields.get("block_hashes")),
                _parent(fields.get("parent_block_hash")),
                tuple(_whole(token) for token in _array(fields.get("token_ids"))),
                size,
                tier,
            )
        case "BlockRemoved":
            return Removed(_hashes(fields.get("block_hashes")), tier)
        case "AllBlocksCleared":
            return Cleared()
    return None


def _is_plain(fields: Mapping[str, object]) -> bool:
    extra = fields.get("extra_keys")
    own = fields.get("lora_id") is not None or fields.get("lora_name") is not None
    return not own and not (isinstance(extra, list) and any(extra))


def _array(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]!r} is no array")
    return value


def _hashes(value: object) -> tuple[Hash, ...]:
    return tuple(_hash(one) for one in _array(value))


def _parent(value: object) -> Hash | None:
    return None if value is None else _hash(value)


def _hash(value: object) -> Hash:
    if isinstance(value, bytes) or type(value) is int:
        return value
    raise TypeError(f"{str(value)[:40]!r} names no block")


def _whole(value: object) -> int:
    if type(value) is int and 0 <= value < 1 << 32:
        return value
    raise TypeError(f"{str(value)[:40]!r} is no token and no size")

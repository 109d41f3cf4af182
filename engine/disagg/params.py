"""What travels beside a request in ``kv_transfer_params``: the wish to hand over, and the offer that answers it.

The keys are vLLM's, so that its proxies work with this engine; ``remote_layout`` is our own. Everything here comes
from outside and is checked. Unknown keys are let through: newer proxies send more.
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from energyopt.core.errors import RequestError

FIELD = "kv_transfer_params"
MOST_BLOCKS = 1 << 20
"""Block ids that one offer may name: 16 million tokens in blocks of 16."""

_GAP = -1
"""``engine.request.NO_BLOCK``, which is on the other side of an import."""

_ID = re.compile(r"[0-9a-f]{32}")
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lend:
    """The prefill leg: keep the prompt's blocks for another engine when the request ends."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Where the blocks of a prompt wait: what a prefill leg answers and a decode leg is given.

    ``lease`` is a secret of 128 bits: who knows it may read the blocks. ``tables`` are block ids per group of layers,
    -1 where nothing is kept. ``num_tokens`` positions were computed. ``expires`` is Unix time, a hint: the
    heartbeat of the decode side moves it. ``mode`` "pull" reads from the peer, "store" from a shared pool.
    """

    engine: str
    lease: str
    host: str
    port: int
    layout: str
    num_tokens: int
    tables: tuple[tuple[int, ...], ...]
    expires: float | None = None
    mode: str = "pull"

    def wire(self) -> dict[str, object]:
        """The object of a reply."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine,
            "remote_request_id": self.lease,
            "remote_host": self.host,
            "remote_port": self.port,
            "remote_block_ids": [list(table) for table in self.tables],
            "remote_num_tokens": self.num_tokens,
            "remote_blocks_expiry_time": self.expires,
            "remote_layout": self.layout,
            "transfer_mode": self.mode,
            "tp_size": 1,
            "pp_size": 1,
            "dcp_size": 1,
        }


Transfer = Lend | Offer


def parse_transfer(given: Mapping[str, object]) -> Transfer | None:
    """The wish in a request's field; None if it asks for nothing. Raises RequestError naming the key."""
    lends, pulls = (_typed(given, key, bool, False) for key in ("do_remote_decode", "do_remote_prefill"))
    if lends and pulls:
        raise _wrong("do_remote_decode and do_remote_prefill", "both true", "a request is one leg or the other")
    if lends:
        return Lend()
    return _offer(given) if pulls else None


def prompt_digest(tokens: Sequence[int], count: int) -> bytes:
    """16 bytes for the first ``count`` tokens: blocks are handed over only to the prompt they were computed for."""
    words = array("I", tokens[:count])
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.blake2b(words.tobytes(), digest_size=16, person=b"kv-hand-over").digest()


def _offer(given: Mapping[str, object]) -> Offer:
    offer = Offer(
        engine=_matching(given, "remote_engine_id", _ID),
        lease=_matching(given, "remote_request_id", _ID),
        host=_matching(given, "remote_host", _HOST),
        port=_typed(given, "remote_port", int),
        layout=_typed(given, "remote_layout", str)[:200],
        num_tokens=_typed(given, "remote_num_tokens", int),
        tables=_tables(given.get("remote_block_ids")),
        mode=_typed(given, "transfer_mode", str, "pull"),
    )
    if not 0 <= offer.port <= 65535:
        raise _wrong("remote_port", offer.port, "it must be between 0 and 65535")
    if not 1 <= offer.num_tokens <= 1 << 31:
        raise _wrong("remote_num_tokens", offer.num_tokens, "it must be at least 1")
    return offer


def _tables(given: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(given, list) or not given or not all(isinstance(table, list) for table in given):
        raise _wrong("remote_block_ids", "", "it must be an array of arrays, one for each group of layers")
    if sum(map(len, given)) > MOST_BLOCKS:
        raise _wrong("remote_block_ids", sum(map(len, given)), f"at most {MOST_BLOCKS} blocks are allowed")
    for table in given:
        wrong = [block for block in table if type(block) is not int or not _GAP <= block < 1 << 31]
        if wrong:
            raise _wrong("remote_block_ids", str(wrong[0])[:40], "block ids are whole numbers from 0 on")
    return tuple(map(tuple, given))


def _matching(given: Mapping[str, object], key: str, pattern: re.Pattern[str]) -> str:
    value = _typed(given, key, str)
    if not pattern.fullmatch(value):
        raise _wrong(key, value[:60], f"it must match {pattern.pattern}")
    return value


def _typed(given: Mapping[str, object], key: str, kind: type[T], default: T | None = None) -> T:
    value = given.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not kind:
        raise _wrong(key, str(value)[:60], f"it must be of the type {kind.__name__}")
    return value


def _wrong(key: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{FIELD}: {key} = {value!r} is not allowed: {allowed}.", param=FIELD)

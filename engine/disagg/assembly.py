"""From a configuration to an engine that hands over and takes over."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from energyopt.core.clock import Clock
from energyopt.core.config import KvTransferConfig
from energyopt.core.errors import ConfigError

from ..kv.ports import BlockMover
from ..kv.tier_counter import TierCounter
from .client import WireSource, by_shared_memory, by_tcp
from .exchange import Address, Exchange
from .leases import LeaseBook
from .lender import Lender
from .params import Offer
from .ports import REMOTE, KvSource
from .server import BlockServer, shared_listener, tcp_listener

PULL, SHARED = "pull", "shm"
"""Transfer modes: vLLM's name for blocks that the decode side reads from its peer, and ours through shared memory."""

_EVERYWHERE = ("0.0.0.0", "::", "")


def open_exchange(config: KvTransferConfig, mover: BlockMover, clock: Clock, *, secret: bytes = b"") -> Exchange:
    """An exchange that lends at once. Raises ConfigError for an address that is taken or tells peers nothing."""
    engine = secrets.token_hex(16)
    book, counter = LeaseBook(clock, seconds=config.lease), TierCounter(REMOTE)
    lender = Lender(book, mover, counter, clock)
    host = config.advertise or config.host
    if config.transport == "tcp" and host in _EVERYWHERE:
        raise ConfigError(f"Peers cannot reach {host!r}: say with kv_transfer advertise how they reach this host.")
    shared = config.transport == "shm"
    listener = shared_listener(engine) if shared else tcp_listener(config.host, config.port)
    server = BlockServer(lender, listener, clock, secret=secret)
    address = Address(engine, host, server.port, SHARED if shared else PULL)

    def connect(offer: Offer) -> KvSource:
        way = by_shared_memory(offer.engine) if shared else by_tcp(offer.host, offer.port)
        return WireSource(way, mover.block_bytes, clock, secret=secret, allocate=mover.allocate)

    return Exchange(
        mover,
        clock,
        book,
        address,
        connect,
        permits=_any_host if shared else _only(config.peers),
        recompute=config.failure_policy == "recompute",
        counter=counter,
        on_close=server.close,
    )


def _any_host(offer: Offer) -> str | None:
    """Shared memory has no hosts."""
    return None


def _only(peers: tuple[str, ...]) -> Callable[[Offer], str | None]:
    """A request must not make this engine talk to any address it names."""

    def permits(offer: Offer) -> str | None:
        if offer.host in peers:
            return None
        return f"its host {offer.host!r} is none of the peers of this engine ({', '.join(peers)})"

    return permits

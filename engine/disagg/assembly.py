"""From a configuration to an engine that hands over and takes over."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from energyopt.core.clock import Clock
from energyopt.core.config import KvTransferConfig
from energyopt.core.errors import ConfigError

from ..kv.mooncake import MooncakeAddress, MooncakeStore
from ..kv.ports import BlockMover
from ..kv.tier_counter import TierCounter
from .client import WireSource, by_shared_memory, by_tcp
from .exchange import Address, Exchange
from .leases import LeaseBook
from .lender import Lender
from .nixl import NixlAgent
from .params import Offer
from .pooled import PooledLending, PooledSource
from .ports import REMOTE, KvSource
from .server import BlockServer, shared_listener, tcp_listener

PULL, SHARED, POOLED, READ = "pull", "shm", "store", "nixl"
"""Transfer modes: vLLM's name for blocks that the decode side asks its peer for; ours for shared memory, pools, and
memory that the decode side reads."""

_EVERYWHERE = ("0.0.0.0", "::", "")


def open_exchange(config: KvTransferConfig, mover: BlockMover, clock: Clock, *, secret: bytes = b"") -> Exchange:
    """An exchange that lends at once. Raises ConfigError for an address that is taken or tells peers nothing."""
    engine = secrets.token_hex(16)
    book, counter = LeaseBook(clock, seconds=config.lease), TierCounter(REMOTE)
    lender = Lender(book, mover, counter, clock)
    if config.transport == "mooncake":
        return _over_a_pool(config, mover, clock, lender, counter, engine)
    host = config.advertise or config.host
    if config.transport in ("tcp", "nixl") and host in _EVERYWHERE:
        raise ConfigError(f"Peers cannot reach {host!r}: say with kv_transfer advertise how they reach this host.")
    shared = config.transport == "shm"
    listener = shared_listener(engine) if shared else tcp_listener(config.host, config.port)
    agent = NixlAgent(engine) if config.transport == "nixl" else None
    server = BlockServer(lender, listener, clock, secret=secret, agent=agent)
    address = Address(engine, host, server.port, SHARED if shared else PULL if agent is None else READ)

    def connect(offer: Offer) -> KvSource:
        way = by_shared_memory(offer.engine) if shared else by_tcp(offer.host, offer.port)
        return WireSource(way, mover.block_bytes, clock, secret=secret, allocate=mover.allocate, agent=agent)

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


def _over_a_pool(
    config: KvTransferConfig, mover: BlockMover, clock: Clock, lender: Lender, counter: TierCounter, engine: str
) -> Exchange:
    """Blocks by way of Mooncake Store. Raises ConfigError for a bad address, or without its library."""
    address = MooncakeAddress.parse(config.pool or "")
    shelf = MooncakeStore(address, f"hand-over/{mover.layout}", config.pool_bytes, mover.block_bytes)
    lending = PooledLending(shelf, lender, mover, clock)
    return Exchange(
        mover,
        clock,
        lender.book,
        Address(engine, "pool", 0, POOLED),
        lambda offer: PooledSource(shelf, mover.block_bytes, clock, allocate=mover.allocate),
        permits=_any_host,
        recompute=config.failure_policy == "recompute",
        counter=counter,
        on_lend=lending.push,
        on_close=lending.close,
    )


def _any_host(offer: Offer) -> str | None:
    """Shared memory has no hosts, and a pool is where the configuration says."""
    return None


def _only(peers: tuple[str, ...]) -> Callable[[Offer], str | None]:
    """A request must not make this engine talk to any address it names."""

    def permits(offer: Offer) -> str | None:
        if offer.host in peers:
            return None
        return f"its host {offer.host!r} is none of the peers of this engine ({', '.join(peers)})"

    return permits

"""A whole router: backends, policy, pages, and what runs beside the requests."""

from __future__ import annotations

import asyncio
import logging

from energyopt.core.clock import Clock, MonotonicClock
from engine.routing.book import Book, Traits
from engine.routing.choose import make_policy
from engine.routing.cost import CostModel
from engine.routing.desk import Desk
from engine.routing.names import CHUNK_TOKENS

from .app import RouterApp
from .backend import Backend, health_of
from .counts import Counts
from .events import EventFollower
from .fleet import Fleet
from .forward import Forwarder
from .metrics import RouterCollector, RouterPage
from .pool import Pool, Target
from .probe import Prober
from .settings import BackendConfig, RouterConfig
from .vllm_events import VllmFollower

_SWEEP = 1.0
"""Seconds between looks for connections that are idle or silent too long."""
_log = logging.getLogger(__name__)


class Router:
    """``app`` answers requests; ``start`` begins what runs beside it, on the same event loop, and ``stop`` ends all.

    Raises ConfigError for a file of authorities that cannot be read, or where following vLLM's events needs a package.
    """

    def __init__(self, config: RouterConfig, clock: Clock | None = None) -> None:
        clock = clock or MonotonicClock()
        self.config = config
        self.counts = Counts()
        self.desk = _desk(config)
        backends = [Backend(one, _pool(one, config), health_of(config)) for one in config.backends]
        self.fleet = Fleet(backends, self.desk, clock, max_queue=config.max_queue, queue_seconds=config.queue_seconds)
        forwarder = Forwarder(
            self.fleet, self.counts, clock, retries=config.retries, strip_key=config.api_key is not None
        )
        self.app = RouterApp(
            self.fleet,
            forwarder,
            RouterPage(RouterCollector(self.fleet, self.counts)),
            max_body_bytes=config.max_body_bytes,
            body_seconds=config.body_seconds,
            api_key=config.api_key,
        )
        self.prober = Prober(
            self.fleet.backends,
            config.health_seconds,
            on_up=lambda name: self.fleet.changed(),
            on_down=self.desk.forget,
        )
        self._followers = [self._follower(backend) for backend in backends]
        self._tasks: list[asyncio.Task[None]] = []

    def _follower(self, backend: Backend) -> EventFollower | VllmFollower:
        endpoint, replay = backend.config.kv_events_endpoint, backend.config.kv_replay_endpoint
        if endpoint is None:
            return EventFollower(backend, self.desk, self.counts)
        return VllmFollower(backend, self.desk, self.counts, endpoint, replay)

    def start(self) -> None:
        """Begin to probe backends and to look after connections."""
        followed = [follower.run() for follower in self._followers] if self.config.kv_events else []
        for work in (self.prober.run(), self._sweep(), *followed):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(_report)
            self._tasks.append(task)

    async def stop(self) -> None:
        """End what runs beside the requests, and every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()

    def cut(self) -> None:
        """End every request that is still under way: its client gets an error."""
        self.fleet.close()
        for backend in self.fleet.backends:
            backend.pool.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            now = asyncio.get_running_loop().time()
            for backend in self.fleet.backends:
                backend.pool.sweep(now)


def _desk(config: RouterConfig) -> Desk:
    cost = CostModel(config.tier_credit, config.decode_weight, config.recent_weight, config.joules_weight)
    traits = {one.name: Traits(one.speed, one.joules_per_token) for one in config.backends}
    policy = make_policy(config.policy, cost, seed=config.seed)
    return Desk(policy, Book(traits), chunks_held=config.cache_tokens // CHUNK_TOKENS)


def _pool(one: BackendConfig, config: RouterConfig) -> Pool:
    target = Target.of(one.name, one.url, ca_file=one.ca_file, verify=one.verify)
    return Pool(target, connect_seconds=config.connect_seconds, silence_seconds=config.silence_seconds)


def _report(task: asyncio.Task[None]) -> None:
    """A task beside the requests that fails is a fault of ours: said in the log, since nobody awaits it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the router's %s ended: %s", task.get_name(), error, exc_info=error)

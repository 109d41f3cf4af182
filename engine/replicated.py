"""One engine of several replicas: each has a scheduler and a cache of its own, and takes a share of the requests."""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import Any

from energyopt.core.errors import ConfigError

from .batch import CacheShape, Runner
from .front import EngineFront
from .idle import SleepCounts
from .kv.events import EventLog
from .kv.ports import TierCounts
from .output import Output
from .parallel.replicas import Conductor
from .parallel.runner import ParallelRunner
from .ports import EngineStats
from .request import SamplingParams
from .speculative.ports import DraftCounts


class ReplicatedFront:
    """Satisfies ``ports.ServingEngine`` over the fronts of all replicas.

    A session stays with one replica, where its prefixes are; other requests go where the fewest are. Limits on
    sequences and on the queue are each replica's.
    """

    def __init__(self, fronts: Sequence[EngineFront]) -> None:
        self._fronts = tuple(fronts)
        self._active = Counter[int]()
        self._owners: dict[str, int] = {}

    @property
    def cache(self) -> CacheShape:
        """One replica's."""
        return self._fronts[0].cache

    @property
    def max_model_len(self) -> int:
        return self._fronts[0].max_model_len

    @property
    def alive(self) -> bool:
        return all(front.alive for front in self._fronts)

    @property
    def block_naming(self) -> tuple[int, int]:
        return self._fronts[0].block_naming

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, request_id: str, session: str | None = None
    ) -> AsyncIterator[Output]:
        """See ``ports.ServingEngine.generate``."""
        owned = self._owners.get(request_id)
        number = self._choose(session) if owned is None else owned  # which refuses an id that is in use
        self._owners.setdefault(request_id, number)
        self._active[number] += 1
        outputs = self._fronts[number].generate(prompt, params, request_id=request_id, session=session)
        try:
            async with contextlib.aclosing(outputs):  # type: ignore[type-var]
                async for output in outputs:
                    yield output
        finally:
            self._active[number] -= 1
            if owned is None:
                del self._owners[request_id]

    def abort(self, request_id: str) -> None:
        number = self._owners.get(request_id)
        if number is not None:
            self._fronts[number].abort(request_id)

    async def reset_prefix_cache(self, tier: str | None = None) -> int:
        return sum([await front.reset_prefix_cache(tier) for front in self._fronts])

    def watch_cache(self, log: EventLog | None) -> Future[int]:
        """Raises ConfigError: one log cannot tell what several caches hold."""
        raise ConfigError("KV cache events are not allowed with dp above 1: each replica has a cache of its own.")

    def stats(self) -> EngineStats:
        """Sums over the replicas."""
        return merge_stats([front.stats() for front in self._fronts])

    def close(self) -> None:
        """Every replica is closed, also where one does not end in time, which is raised then."""
        with contextlib.ExitStack() as stack:
            for front in self._fronts:
                stack.callback(front.close)

    def _choose(self, session: str | None) -> int:
        if session is not None:
            return zlib.crc32(session.encode()) % len(self._fronts)
        return min(range(len(self._fronts)), key=lambda number: (self._active[number], number))


def open_front(runner: Runner, make: Callable[[Runner], EngineFront]) -> EngineFront | ReplicatedFront:
    """``make`` gives the front of one scheduler over a runner; replicas get one each."""
    if isinstance(runner, ParallelRunner) and runner.replicas > 1:
        return ReplicatedFront([make(replica) for replica in Conductor(runner).replicas])
    return make(runner)


_SUMMED = (
    *("running", "waiting", "blocks_used", "blocks_cached", "blocks_total", "prompt_tokens", "output_tokens"),
    *("preemptions", "steps", "step_seconds", "loading", "load_failures"),
)


def merge_stats(parts: Sequence[EngineStats]) -> EngineStats:
    """Counters and gauges add up; settings are the same everywhere."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in _SUMMED}
    return replace(
        parts[0],
        **sums,
        finished_by_reason=_added([part.finished_by_reason for part in parts]),
        prompt_tokens_by_source=_added([part.prompt_tokens_by_source for part in parts]),
        tiers=_added_tiers([part.tiers for part in parts]),
        drafts=_added_drafts([part.drafts for part in parts if part.drafts is not None]),
        sleep=_added_sleep([part.sleep for part in parts if part.sleep is not None]),
    )


def _added_drafts(parts: Sequence[DraftCounts]) -> DraftCounts | None:
    """``depth`` is the deepest of the replicas."""
    if not parts:
        return None
    by_place = Counter[int]()
    for part in parts:
        by_place.update(part.by_place)
    return DraftCounts(
        drafts=sum(part.drafts for part in parts),
        drafted=sum(part.drafted for part in parts),
        accepted=sum(part.accepted for part in parts),
        depth=max(part.depth for part in parts),
        by_place=by_place,
    )


def _added_sleep(parts: Sequence[SleepCounts]) -> SleepCounts | None:
    """Asleep is the engine when all replicas are. What is unknown of one of them is unknown of all."""
    if not parts:
        return None
    sums: dict[str, Any] = {}
    for one in fields(SleepCounts):
        values = [getattr(part, one.name) for part in parts]
        sums[one.name] = None if None in values else sum(values)
    return SleepCounts(**{**sums, "asleep": all(part.asleep for part in parts)})


def _added_tiers(parts: Sequence[tuple[TierCounts, ...]]) -> tuple[TierCounts, ...]:
    """The tiers of each replica by their place: every replica has the same."""
    return tuple(_added_tier(counts) for counts in zip(*parts, strict=True))


def _added_tier(parts: Sequence[TierCounts]) -> TierCounts:
    names = [one.name for one in fields(TierCounts) if one.name not in ("tier", "failures")]
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    return replace(parts[0], **sums, failures=_added([part.failures for part in parts]))


def _added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for part in parts:
        total.update(part)
    return dict(total)

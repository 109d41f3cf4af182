"""Leaps over decode steps in which nothing changes, with exactly the outcome of stepping through them.

While every running request decodes, nobody can be admitted and no block runs out, a step only adds one token to each.
The time of each such step is still priced on its own (contexts grow), so records agree to the last bit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, chain, repeat
from operator import add, sub

from energyopt.core.records import FinishReason, Phase
from energyopt.core.units import Seconds
from engine.kv.coordinator import KvCoordinator
from engine.request import Request
from engine.scheduler import Scheduler

from .runner import TOKEN, RooflineRunner


def leapable(scheduler: Scheduler, running: Sequence[Request]) -> int:
    """How many decode steps follow before any of ``running`` must be scheduled anew; 0 if already the next may differ.

    The last of them ends the first request to end. Whoever waits must be known to be kept out: see ``Replica``.
    """
    if not running or any(request.phase is not Phase.DECODE for request in running):
        return 0
    steps = min(request.params.max_tokens - len(request.output) for request in running)
    while steps and not _room_for(scheduler, running, steps):
        steps //= 2
    return steps


def _room_for(scheduler: Scheduler, running: Sequence[Request], steps: int) -> bool:
    size = scheduler.cache.shape.block_tokens
    missing = 0
    for request in running:
        missing += max(0, -(-(request.num_computed + steps) // size) - len(request.block_ids))
    return missing <= scheduler.cache.pool.num_available


def leap(
    scheduler: Scheduler, runner: RooflineRunner, running: Sequence[Request], steps: int, until: float
) -> list[Request]:
    """Take up to ``steps`` steps; stop after the one in which the clock reaches ``until``. Returns who ended."""
    cache = scheduler.cache
    context = sum(request.num_tokens for request in running)
    times = _times(scheduler, runner, len(running), context, steps, until)
    taken = len(times)
    for request in running:
        if request.num_computed + taken > request.kv.covered:  # as ``grow`` would see, and a call saved
            cache.grow(request, request.num_computed + taken)
    for request in running:  # a token is known before the step that computes it, so the last one comes later
        request.output.extend([TOKEN.token] * (taken - 1))
        _commit(cache, request, taken - 1)
    ended = []
    for request in running:
        _commit(cache, request, 1)
        request.output.append(TOKEN.token)
        request.token_times.extend(times)
        if len(request.output) >= request.params.max_tokens:
            scheduler.finish(request, FinishReason.LENGTH)
            ended.append(request)
    return ended


def _commit(cache: KvCoordinator, request: Request, steps: int) -> None:
    """``commit``, which is called only where the cache has something to do."""
    if request.num_computed + steps < request.kv.quiet:
        request.num_computed += steps
    else:
        cache.commit(request, request.num_computed + steps)


def _times(
    scheduler: Scheduler, runner: RooflineRunner, count: int, context: int, steps: int, until: float
) -> list[Seconds]:
    """When each step ends: sums in the very order in which stepping adds, run by run of equal prices."""
    begin = now = runner.clock.now()
    times: list[Seconds] = []
    while len(times) < steps and now < until:
        cost, alike = runner.run_of_steps(count, context + len(times) * count)
        ends = list(accumulate(repeat(cost.seconds, min(alike, steps - len(times))), initial=now))
        if ends[-1] >= until:
            del ends[bisect_left(ends, until, 1) + 1 :]
        runner.ledger.note(now, ends[-1], cost.watts, 0.0)
        now = Seconds(ends[-1])
        times += ends[1:]  # type: ignore[arg-type]  # instants, as ``now`` is one
    runner.clock.set(now)
    counters = scheduler.counters
    counters.steps += len(times)
    counters.output_tokens += len(times) * count
    counters.step_seconds = reduce(add, map(sub, times, chain((begin,), times)), counters.step_seconds)
    return times

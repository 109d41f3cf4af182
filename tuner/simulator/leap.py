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

from .machine import StepCost
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
    """When each step ends: sums in the very order in which stepping adds."""
    begin = runner.clock.now()
    spans = _spans(runner, count, context, steps, until - begin)
    each = chain.from_iterable([repeat(cost.seconds, number) for cost, number in spans])
    ticks: list[Seconds] = list(accumulate(each, initial=begin))  # type: ignore[arg-type]  # an instant and durations
    if ticks[-1] >= until:
        del ticks[bisect_left(ticks, until, 1) + 1 :]
    last, place = len(ticks) - 1, 0
    for cost, number in spans:
        if place < last:
            end = min(place + number, last)
            runner.ledger.note(ticks[place], ticks[end], cost.watts, 0.0)
            place = end
    ends = ticks[1:]
    runner.clock.set(ends[-1])
    counters = scheduler.counters
    counters.steps += last
    counters.output_tokens += last * count
    counters.step_seconds = reduce(add, map(sub, ends, ticks), counters.step_seconds)
    return ends


def _spans(runner: RooflineRunner, count: int, context: int, steps: int, within: float) -> list[tuple[StepCost, int]]:
    """The prices of up to ``steps`` steps and how many steps each holds for: not far more than take ``within``
    seconds.
    """
    spans: list[tuple[StepCost, int]] = []
    prices = runner.decode_prices(count, context)
    while steps and within > 0:
        cost, alike = next(prices)
        number = min(alike, steps)
        spans.append((cost, number))
        steps -= number
        within -= number * cost.seconds
    return spans

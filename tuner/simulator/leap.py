"""Leaps over decode steps in which nothing changes, with exactly the outcome of stepping through them.

While every running request decodes, nobody can be admitted, nobody ends and no block runs out, a step only adds one
token to each. The time of each such step is still priced on its own (contexts grow), so records agree to the last bit.
"""

from __future__ import annotations

from energyopt.core.units import Seconds
from engine.batch import Batch
from engine.scheduler import Scheduler

from .runner import TOKEN, RooflineRunner
from .work import StepShape


def leapable(scheduler: Scheduler, batch: Batch) -> int:
    """How many steps equal to ``batch`` may follow it before anything else can happen; 0 if the next may differ.

    Call it after ``batch`` was settled. All its requests must have decoded and still run; the last step before the
    first of them ends is left to the scheduler.
    """
    if len(batch.items) != scheduler.num_running:
        return 0
    fewest = min((item.request.params.max_tokens - len(item.request.output) for item in batch.items), default=0)
    if fewest < 2 or any(item.count != 1 or item.request.remaining != 1 for item in batch.items):
        return 0
    steps = fewest - 1
    return steps if _room_for(scheduler, batch, steps) else 0


def _room_for(scheduler: Scheduler, batch: Batch, steps: int) -> bool:
    size = scheduler.cache.shape.block_tokens
    missing = 0
    for item in batch.items:
        request = item.request
        missing += max(0, -(-(request.num_computed + steps) // size) - len(request.block_ids))
    return missing <= scheduler.cache.pool.num_available


def leap(scheduler: Scheduler, runner: RooflineRunner, batch: Batch, steps: int, until: float | None) -> int:
    """Take up to ``steps`` steps; stop after the one in which the clock reaches ``until``. Returns how many it took."""
    count = len(batch.items)
    context = sum(item.request.num_tokens for item in batch.items)
    times = _times(scheduler, runner, count, context, steps, until)
    for item in batch.items:
        request = item.request
        request.output.extend([TOKEN.token] * len(times))
        request.token_times.extend(times)
        scheduler.cache.grow(request, request.num_computed + len(times))
        scheduler.cache.commit(request, request.num_computed + len(times))
    return len(times)


def _times(
    scheduler: Scheduler, runner: RooflineRunner, count: int, context: int, steps: int, until: float | None
) -> list[Seconds]:
    """When each step ends: sums in the very order in which stepping adds, run by run of equal prices."""
    times: list[Seconds] = []
    now = runner.clock.now()
    spent = scheduler.counters.step_seconds
    while len(times) < steps and (until is None or now < until):
        at = context + len(times) * count
        cost = runner.price(StepShape(count, at, sampled=count))
        start = now
        for _ in range(min(runner.steps_alike(count, at), steps - len(times))):
            before, now = now, Seconds(now + cost.seconds)
            times.append(now)
            spent += now - before
            if until is not None and now >= until:
                break
        runner.ledger.note(start, now, cost.watts, 0.0)
    runner.clock.set(now)
    scheduler.counters.steps += len(times)
    scheduler.counters.output_tokens += len(times) * count
    scheduler.counters.step_seconds = spent
    return times

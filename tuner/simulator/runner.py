"""A Runner that predicts instead of computing: the engine's scheduler drives it like any other.

It reads a batch's shape, asks the machine for seconds and watts, and moves a virtual clock. Its tokens mean nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from energyopt.core.clock import FakeClock
from energyopt.core.errors import OutOfMemoryError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, CacheShape, Sampled, StepResult

from .machine import Machine, StepCost
from .memory import kv_tokens
from .work import KV_BYTES, StepShape

GRAIN = 16
"""Tokens of mean context between two prices of a decode step, up to ``FINE`` tokens; it doubles as the context does.

A price is off by at most 1/256 of what the context costs, so prices can be kept.
"""
FINE = 4096
TOKEN = Sampled(0)
"""What every request samples; simulated requests ignore end-of-text."""


class VirtualClock(FakeClock):
    """A clock that can be put at an instant exactly, where adding a difference would round."""

    def set(self, instant: Seconds) -> None:
        """Raises ValueError on an instant of the past."""
        if instant < self._now:
            raise ValueError(f"cannot set a clock at {self._now} back to {instant}.")
        self._now = instant


@dataclass(slots=True)
class Ledger:
    """Steps in order of time: begin, end, watts per device while they ran, and the share of tokens that were
    prefill.
    """

    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    watts: array[float] = field(default_factory=lambda: array("d"))
    prefill: array[float] = field(default_factory=lambda: array("d"))

    def note(self, start: float, end: float, watts: float, prefill: float) -> None:
        """One step, or several alike that follow one another; what continues the last entry prolongs it."""
        if self.ends and self.ends[-1] == start and self.watts[-1] == watts and self.prefill[-1] == prefill:
            self.ends[-1] = end
            return
        self.starts.append(start)
        self.ends.append(end)
        self.watts.append(watts)
        self.prefill.append(prefill)


class RooflineRunner:
    """One replica of attention of an engine on a virtual clock. Raises OutOfMemoryError if its cache would be empty.

    ``blocks`` limits the pool below what fits (a user's ``kv.memory_bytes``). Pipeline stages are taken as filled: the
    batch moves as ``pp`` micro-batches, so a step costs what one of them costs.
    """

    def __init__(
        self, machine: Machine, clock: VirtualClock, *, block_tokens: int, blocks: int | None = None, name: str = "sim"
    ) -> None:
        fits = int(kv_tokens(machine.spec, machine.gpu, machine.layout) // block_tokens)
        if fits < 1:
            raise OutOfMemoryError(
                f"{machine.spec.name} does not fit on {machine.layout.devices} x {machine.gpu.name}: "
                "no memory is left for the cache."
            )
        per_block = machine.spec.kv_bytes_per_token(KV_BYTES) * block_tokens
        self._cache = CacheShape(min(fits, blocks or fits), block_tokens, Bytes(round(per_block)))
        self._devices = tuple(f"{name}:{machine.gpu.name}:{index}" for index in range(machine.layout.devices))
        self._pp = machine.layout.pp
        self.machine, self.clock, self.ledger = machine, clock, Ledger()

    @property
    def cache(self) -> CacheShape:
        return self._cache

    @property
    def devices(self) -> tuple[str, ...]:
        return self._devices

    def run(self, batch: Batch) -> StepResult:
        """Price the batch and let its time pass."""
        start = self.clock.now()
        self.advance(shape_of(batch))
        return StepResult([TOKEN if item.sample else None for item in batch.items], start, self.clock.now())

    def advance(self, shape: StepShape) -> Seconds:
        """One step of this shape; returns when it ends."""
        cost = self.price(shape)
        start = self.clock.now()
        self.clock.advance(cost.seconds)
        end = self.clock.now()
        self.ledger.note(start, end, cost.watts, shape.prefill_tokens / shape.tokens)
        return end

    def price(self, shape: StepShape) -> StepCost:
        """The cost of a step. Pure decode steps are priced at their mean context, rounded to a grain."""
        if shape.prefills:
            return self._cost(shape)
        count = int(shape.decodes)
        grain, bucket, _ = self._grain(count, int(shape.decode_context))
        mean = bucket * grain
        known = self.machine.prices.get((count, mean))
        if known is None:
            known = self.machine.prices[count, mean] = self._cost(StepShape(count, max(1, mean * count), sampled=count))
        return known

    def decode_prices(self, count: int, context: int) -> Iterator[tuple[StepCost, int]]:
        """Prices of the steps of ``count`` decodes from ``context`` tokens in sum on, which grow by ``count`` a step;
        each with how many steps in a row have it.
        """
        known = self.machine.prices.get
        while True:
            grain, bucket, finer = self._grain(count, context)
            while 2 * context < finer:
                cost = known((count, bucket * grain)) or self.price(StepShape(count, context, sampled=count))
                end = min((2 * bucket + 1) * grain * count, finer)
                alike = max(1, -(-(end - 2 * context) // (2 * count)))
                yield cost, alike
                context += alike * count
                bucket += 1

    def _grain(self, count: int, context: int) -> tuple[int, int, int]:
        """The grain of mean contexts around ``context / count``, to which multiple of it that is rounded, and twice the
        context at which the grain doubles.
        """
        octave = max(FINE.bit_length() - 1, (context // count).bit_length())
        grain = GRAIN << (octave - FINE.bit_length() + 1)
        return grain, (2 * context + grain * count) // (2 * grain * count), count << (octave + 1)

    def _cost(self, shape: StepShape) -> StepCost:
        return self.machine.cost(shape if self._pp == 1 else shape.divided(self._pp))

    def close(self) -> None:
        """Nothing is held."""


def shape_of(batch: Batch) -> StepShape:
    """The shape of a batch: chunks of one token with a sampled one count as decodes, as they cost the same."""
    decodes = decode_context = prefills = tokens = pairs = context = sampled = 0
    for item in batch.items:
        sampled += item.sample
        if item.count == 1:
            decodes += 1
            decode_context += item.start + 1
            continue
        prefills += 1
        tokens += item.count
        context += item.start
        pairs += item.count * item.start + item.count * (item.count + 1) // 2
    return StepShape(decodes, decode_context, prefills, tokens, pairs, context, sampled)

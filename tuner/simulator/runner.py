"""A Runner that predicts instead of computing: the engine's scheduler drives it like any other.

It reads a batch's shape, asks the machine for seconds and watts, and moves a virtual clock. Its tokens mean nothing.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from energyopt.core.clock import FakeClock
from energyopt.core.errors import OutOfMemoryError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, CacheShape, Sampled, StepResult

from .machine import Machine
from .memory import kv_tokens
from .work import KV_BYTES, StepShape

TOKEN = Sampled(0)
"""What every request samples; simulated requests ignore end-of-text."""


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
        self, machine: Machine, clock: FakeClock, *, block_tokens: int, blocks: int | None = None, name: str = "sim"
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
        part = shape if self._pp == 1 else shape.divided(self._pp)
        cost = self.machine.cost(part)
        start = self.clock.now()
        self.clock.advance(cost.seconds)
        end = self.clock.now()
        self.ledger.note(start, end, cost.watts, shape.prefill_tokens / shape.tokens)
        return end

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

"""The runner whose work is done by ranks, one process each: batches out, logits back, tokens sampled here.

Satisfies ``engine.batch.Runner``. Sampling stays in the engine's process, so penalties, guides and log-probabilities
are the same code whatever the layout.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, EngineError
from energyopt.core.units import Bytes, Seconds

from ..answers import Answers, answer
from ..batch import Batch, CacheShape, StepResult
from ..inputs import idle_inputs, step_inputs
from ..kv.layout import GroupSpec
from ..memory import available_bytes
from ..models import OpenedModel, usable_threads
from ..sampler import Sampler
from .copies import RankMover
from .fabric import Backend, Wiring
from .groups import unpack_groups
from .launcher import Launcher
from .layout import check_model_layout
from .memory import SharedMemory
from .message import pack_inputs
from .rank import RESULT
from .topology import Topology
from .wire import Kind, pack, unpack

_HOST_SHARE = 0.25
"""Of a host's free memory, for the pools of all CPU ranks together."""


class Crew(Protocol):
    """The ranks as the runner sees them; ``Launcher`` is the one of processes."""

    def started(self) -> None: ...

    def send(self, kind: Kind, body: bytes = b"", ranks: Sequence[int] | None = None) -> None: ...

    def receive(self, rank: int) -> tuple[Kind, bytes]: ...

    def close(self) -> None: ...


class Hire(Protocol):
    """Starts a crew of ranks with these names over this memory."""

    def __call__(self, names: Sequence[str], memory: SharedMemory) -> Crew: ...


def processes(names: Sequence[str], memory: SharedMemory) -> Crew:
    """One process a rank."""
    return Launcher(names, memory)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A batch for each replica, which the ranks compute."""

    batches: tuple[Batch, ...]
    start: Seconds


class ParallelRunner:
    """Starts the ranks of ``config.layout`` and computes on them; ``depth`` batches may be under way, in order.

    Raises ConfigError for a layout that breaks a rule of the model; ModelError, OutOfMemoryError, EngineError from a
    rank that cannot start. After an EngineError of ``run`` no rank is left.
    """

    max_scored_tokens = 32
    """Each takes a row of shared memory in every step that may be under way."""

    def __init__(
        self,
        opened: OpenedModel,
        config: EngineConfig,
        clock: Clock,
        *,
        backend: Backend | None = None,
        hire: Hire = processes,
    ) -> None:
        check_model_layout(opened.spec, config.layout)
        self._clock = clock
        self._sampler = Sampler(config.seed, opened.tokenizer.eos_ids)
        self._vocab = opened.spec.vocab
        self._topology = topology = Topology(config.layout, opened.spec.layers)
        self.depth = config.layout.pp
        chosen: Backend = backend or ("nccl" if opened.device.type == "cuda" else "shared")
        rows = config.max_num_seqs + self.max_scored_tokens
        self._wiring = Wiring(topology, chosen, rows * self._vocab * 4, self.depth + 1)
        self.replicas = config.layout.dp
        self._logits = [self._wiring.logits(replica) for replica in range(self.replicas)]
        self._folder = Path(tempfile.mkdtemp(prefix="energyopt-ranks-"))
        self._flights: deque[_Flight] = deque()
        self._answered = 0
        self._end = Seconds(0.0)
        self._crew: Crew | None = None
        try:
            self._crew = hire([str(seat) for seat in topology.seats], self._wiring.memory)
            self._shape = self._start(opened, config)
        except BaseException:
            self.close()
            raise

    @property
    def cache(self) -> CacheShape:
        return self._shape

    @property
    def devices(self) -> tuple[str, ...]:
        return self._devices

    @property
    def movers(self) -> tuple[RankMover, ...]:
        """What moves each rank's part of blocks, by rank."""
        return self._movers

    def run(self, batch: Batch) -> StepResult:
        self.start(batch)
        return self.finish()

    def logits(self, batch: Batch) -> torch.Tensor:
        """Compute the batch; logits (rows, vocab), float32: of each item the last ``ScheduledRequest.rows``."""
        self.start(batch)
        self._flights.pop()
        found = self._next_logits(0).clone()
        self._answered += 1
        return found

    def run_all(self, batches: Sequence[Batch]) -> list[StepResult]:
        """One step of all replicas, a batch for each; their records share its time by the tokens that each computed."""
        self._depart(tuple(batches))
        return self._land()

    def start(self, batch: Batch) -> None:
        """Give a batch to the ranks. Raises EngineError if ``depth`` of them are under way, or if a rank is gone."""
        self._depart((batch,))

    def finish(self) -> StepResult:
        """The result of the oldest batch under way; blocks. Steps of a pipeline overlap, their records do not: each
        begins where the one before ended."""
        return self._land()[0]

    def _depart(self, batches: tuple[Batch, ...]) -> None:
        if len(self._flights) >= self.depth:
            raise EngineError(f"{self.depth} batches are under way; the oldest must be finished first.")
        if len(batches) != self.replicas:
            raise EngineError(f"{len(batches)} batches do not fit {self.replicas} replicas.")
        self._flights.append(_Flight(batches, self._clock.now()))
        for replica, batch in enumerate(batches):
            spare, groups = self._shape.num_blocks, len(self._shape.all_groups)
            inputs = step_inputs(batch) if batch.items else idle_inputs(spare, groups)
            self._ranks.send(Kind.STEP, pack_inputs(inputs), self._topology.members(replica))

    def _land(self) -> list[StepResult]:
        flight = self._flights.popleft()
        answers = [self._sample(batch, self._next_logits(number)) for number, batch in enumerate(flight.batches)]
        self._answered += 1
        at, self._end = max(flight.start, self._end), self._clock.now()
        whole = sum(batch.num_tokens for batch in flight.batches)
        results: list[StepResult] = []
        for batch, (tokens, scores) in zip(flight.batches, answers, strict=True):
            until = Seconds(at + (self._end - at) * batch.num_tokens / max(1, whole))
            results.append(StepResult(tokens, at, until, scores))
            at = until
        return results

    def _sample(self, batch: Batch, logits: torch.Tensor) -> Answers:
        rows = sum(item.rows for item in batch.items)
        if len(logits) != rows:
            raise EngineError(f"The ranks gave {len(logits)} rows of logits, not {rows}.")
        return answer(self._sampler, batch, logits)

    def close(self) -> None:
        self._flights.clear()
        if self._crew is not None:
            self._crew.close()
            self._crew = None
        self._wiring.memory.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _ranks(self) -> Crew:
        if self._crew is None:
            raise EngineError("The runner is closed.")
        return self._crew

    def _next_logits(self, replica: int) -> torch.Tensor:
        """(rows, vocab) in shared memory, valid until ``depth`` more steps were started."""
        kind, body = self._ranks.receive(self._topology.speaker(replica).rank)
        if kind is not Kind.RESULT or len(body) != RESULT.size:
            raise EngineError(f"A rank answered a step with {kind.name}.")
        (rows,) = RESULT.unpack(body)
        slot = self._logits[replica][self._answered % (self.depth + 1)]
        return slot[: rows * self._vocab].view(rows, self._vocab)

    def _start(self, opened: OpenedModel, config: EngineConfig) -> CacheShape:
        """Tell every rank its place, and all of them the size of the pool that each has room for."""
        seats, ranks = self._topology.seats, self._ranks
        told = _told(config, opened, len(seats))
        for seat in seats:
            setup = self._wiring.setup(seat, told, self._folder)
            ranks.send(Kind.SETUP, setup.model_dump_json().encode(), [seat.rank])
        offers = [self._ready(seat.rank) for seat in seats]
        self._devices = tuple(dict.fromkeys(str(offer["device"]) for offer in offers))
        blocks = min(int(offer["blocks"]) for offer in offers)
        tokens, groups = _common(offers, config)
        if config.kv.memory_bytes is None and not groups:  # no more than all sequences could fill
            longest = -(-opened.max_model_len // (tokens * config.layout.dcp))
            blocks = min(blocks, config.max_num_seqs * longest + 1)
        ranks.send(Kind.POOL, pack({"blocks": blocks}))
        for seat in seats:
            self._ready(seat.rank)
        ranks.started()
        self._movers = tuple(
            RankMover(int(offer["bytes_per_block"]), partial(self._order, seat.rank), *self._wiring.copies(seat.rank))
            for seat, offer in zip(seats, offers, strict=True)
        )
        size = sum(int(offer["bytes_per_block"]) for offer in offers) // config.layout.dp
        if config.layout.dp > 1:
            blocks -= 1  # the last one is where a replica without work writes
        return CacheShape(blocks, tokens * config.layout.dcp, Bytes(size), groups)

    def _order(self, rank: int, kind: Kind, body: bytes) -> None:
        self._ranks.send(kind, body, [rank])

    def _ready(self, rank: int) -> dict[str, Any]:
        kind, body = self._ranks.receive(rank)
        if kind is not Kind.READY:
            raise EngineError(f"A rank began with {kind.name}.")
        return unpack(body)


def _told(config: EngineConfig, opened: OpenedModel, ranks: int) -> EngineConfig:
    """What each rank is to use of a host that it shares with the others: cores and, for its pool, free memory."""
    threads = config.threads or max(1, usable_threads(config) // ranks)
    kv = config.kv
    if kv.memory_bytes is None and opened.device.type == "cpu":
        share = int(available_bytes(opened.device) * _HOST_SHARE) // ranks
        kv = kv.model_copy(update={"memory_bytes": Bytes(share)})
    return config.model_copy(update={"threads": threads, "kv": kv})


def _common(offers: Sequence[dict[str, Any]], config: EngineConfig) -> tuple[int, tuple[GroupSpec, ...]]:
    """The tokens of a block and the groups of layers, which are every rank's. Raises ConfigError if they are not."""
    tokens, groups = int(offers[0]["block_tokens"]), unpack_groups(offers[0]["groups"])
    if any((int(offer["block_tokens"]), unpack_groups(offer["groups"])) != (tokens, groups) for offer in offers):
        raise ConfigError(
            f"pp = {config.layout.pp} is not allowed: this model's stages would keep different things of a sequence."
        )
    if groups and config.layout.dcp > 1:
        raise ConfigError(f"dcp = {config.layout.dcp} is not allowed for a model with windows or recurrent states.")
    return tokens, groups

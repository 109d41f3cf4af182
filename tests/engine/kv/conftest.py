"""Fixtures of the tiers' tests: a mover over plain bytes, and tiers that end with the test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.records import RequestRecord
from engine.front import EngineFront
from engine.kv.block_store import BlockStore
from engine.kv.breaker import Breaker
from engine.kv.buffers import Staging
from engine.kv.chooser import Chooser, LoadAlways
from engine.kv.host import HostTier
from engine.kv.ports import LoadRecord, TierCounts, TierEvents, Transfer
from engine.kv.sightings import Sightings
from engine.kv.store_tier import StoreTier
from engine.kv.tiers import Tiers
from engine.models import load_model
from engine.offload import tiers_for
from engine.request import SamplingParams
from engine.runner import TorchRunner

BLOCK_BYTES = 64


class ByteMover:
    """A device of ``slots`` blocks that are plain bytes. ``gate`` holds copies up; ``fail`` makes them raise."""

    layout = "bytes"
    block_bytes = BLOCK_BYTES

    def __init__(self, slots: int = 64) -> None:
        self.device = [bytearray(BLOCK_BYTES) for _ in range(slots)]
        self.gate = threading.Event()
        self.gate.set()
        self.fail = False

    def allocate(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        self._pass()
        for slot, view in zip(slots, into, strict=True):
            view[:] = self.device[slot]

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        self._pass()
        for slot, view in zip(slots, source, strict=True):
            self.device[slot][:] = view

    def _pass(self) -> None:
        assert self.gate.wait(10)
        if self.fail:
            raise RuntimeError("the device copy failed, as it was told to")


class TierRig:
    """Tiers over a ``ByteMover``, with the waiting that a step loop would do."""

    def __init__(
        self,
        *,
        host_blocks: int = 16,
        stores: dict[str, BlockStore] | None = None,
        eviction: str = "lru",
        staging: int = 8,
        sightings: int = 1,
        chooser: Chooser | None = None,
        clock: Clock | None = None,
        patience: float = 2.0,
        fresh: float = 60.0,
    ) -> None:
        self.mover = ByteMover()
        self.clock = clock or MonotonicClock()
        self.loads: list[LoadRecord] = []
        memory = self.mover.allocate(host_blocks * BLOCK_BYTES)
        self.host = HostTier(memory, BLOCK_BYTES, eviction=eviction) if host_blocks else None
        self.stores = {
            name: StoreTier(
                name,
                store,
                self.clock,
                backlog=64,
                patience=patience,
                fresh=fresh,
                breaker=Breaker(self.clock, first=0.05, longest=0.2),
            )
            for name, store in (stores or {}).items()
        }
        self.staging = Staging(self.mover.allocate(staging * BLOCK_BYTES), BLOCK_BYTES)
        self.tiers = Tiers(
            self.mover,
            self.clock,
            host=self.host,
            stores=tuple(self.stores.values()),
            staging=self.staging,
            sightings=Sightings(sightings),
            chooser=chooser or LoadAlways(),
            on_load=self.loads.append,
        )

    def fill(self, slot: int, text: str) -> None:
        self.mover.device[slot][:] = text.encode().ljust(BLOCK_BYTES, b".")

    def content(self, slot: int) -> str:
        return bytes(self.mover.device[slot]).decode().rstrip(".")

    def store(self, **texts: str) -> int | None:
        """Store a block for each key, from slots 0 and up."""
        for slot, text in enumerate(texts.values()):
            self.fill(slot, text)
        return self.tiers.store([Transfer(key.encode(), slot) for slot, key in enumerate(texts)])

    def stored(self, **texts: str) -> None:
        """The same, and wait until every tier has it."""
        ticket = self.store(**texts)
        if ticket is not None:
            assert ticket in self.until(lambda events: bool(events.stored)).stored
        self.settle()

    def settle(self) -> None:
        """Until nothing waits to be saved."""
        deadline = time.monotonic() + 10
        while self.tiers.busy:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def load(self, *keys: str, to: int = 32) -> TierEvents:
        """Load blocks into slots ``to`` and up, and wait for the end."""
        ticket = self.tiers.load([Transfer(key.encode(), to + at) for at, key in enumerate(keys)])
        assert ticket is not None
        return self.until(lambda events: ticket in (*events.loaded, *events.failed))

    def found(self, *keys: str) -> tuple[str, ...]:
        """Where keys are, asked until no store says "later"."""
        wanted = [key.encode() for key in keys]
        deadline = time.monotonic() + 10
        while (found := self.tiers.find(wanted, weigh=True)).later:
            assert time.monotonic() < deadline
            self.tiers.wait(0.1)
        return found.tiers

    def until(self, done: Callable[[TierEvents], bool]) -> TierEvents:
        deadline = time.monotonic() + 10
        while not done(events := self.tiers.poll()):
            assert time.monotonic() < deadline, "nothing ended"
            self.tiers.wait(0.1)
        return events


@pytest.fixture
def make_tiers() -> Iterator[Callable[..., TierRig]]:
    made: list[TierRig] = []

    def make(**options: object) -> TierRig:
        made.append(TierRig(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for rig in made:
        rig.mover.gate.set()
        rig.tiers.close()
        if rig.host is not None:
            rig.host.check_integrity()
            held = {*rig.host._filling.values(), *rig.host._doomed}
            assert not held, "a slot is still held"
        assert rig.staging.num_free == rig.staging.capacity, "a staging buffer is still held"


GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)


class WholeEngine:
    """An engine with a real model and tiers, asked from a plain test."""

    def __init__(self, model: str, *tiers: dict[str, object], max_num_batched_tokens: int = 2048, **kv: object) -> None:
        config = EngineConfig.model_validate(
            {
                "model": model,
                "device": "cpu",
                "dtype": "float32",
                "threads": 1,
                "max_num_batched_tokens": max_num_batched_tokens,
                "kv": {"memory_bytes": 1 << 28, "tiers": tiers, **kv},
            }
        )
        clock, loaded = MonotonicClock(), load_model(config)
        runner = TorchRunner(loaded, config, clock)
        self.tiers: Tiers | None = tiers_for(config, loaded, runner, clock)
        self.tokenizer = loaded.tokenizer
        self.records: list[RequestRecord] = []
        self.front = EngineFront(
            config,
            runner,
            loaded.tokenizer,
            max_model_len=loaded.max_model_len,
            clock=clock,
            tiers=self.tiers,
            on_request=self.records.append,
        )
        self._asked = 0

    def ask(self, prompt: Sequence[int]) -> str:
        return asyncio.run(self.generate(prompt))

    async def generate(self, prompt: Sequence[int], params: SamplingParams = GREEDY) -> str:
        self._asked += 1
        outputs = self.front.generate(prompt, params, request_id=f"r{self._asked}")
        return "".join([output.text async for output in outputs])

    def reset(self, *tiers: str) -> None:
        """Forget what these tiers have, and wait until they do."""
        for tier in tiers:
            asyncio.run(self.front.reset_prefix_cache(tier))
        self.settle()

    def settle(self) -> None:
        """Until every tier has what waits; the step loop offers blocks a moment after the last token."""
        quiet = 0
        while self.tiers is not None and quiet < 3:
            quiet = 0 if self.tiers.busy else quiet + 1
            time.sleep(0.01)

    def count(self, tier: str) -> TierCounts:
        (found,) = (count for count in self.front.stats().tiers if count.tier == tier)
        return found


@pytest.fixture
def whole_engine() -> Iterator[Callable[..., WholeEngine]]:
    """Starts engines that end with the test."""
    started: list[WholeEngine] = []

    def start(model: str, *tiers: dict[str, object], **options: object) -> WholeEngine:
        started.append(WholeEngine(model, *tiers, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for engine in started:
        engine.front.close()

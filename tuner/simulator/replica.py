"""One simulated engine: the engine's own scheduler and cache over a RooflineRunner, on a clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from energyopt.core.config import EngineConfig
from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord
from energyopt.core.units import Seconds
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step import request_record

from .filled import FilledCache
from .leap import leap, leapable
from .machine import Machine
from .runner import TOKEN, RooflineRunner, VirtualClock


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A request to come: when, which tokens, how many wanted.

    ``names`` are those of the prompt's first blocks, for a load whose blocks have names already: equal names must mean
    equal tokens up to there, and the blocks must be as long as the engine's. The others are hashed. ``filled``: another
    engine has computed the prompt and the first token, and its cache arrives with the request.
    """

    id: str
    arrival: float
    prompt: Sequence[int]
    output_tokens: int
    session: str | None = None
    names: tuple[bytes, ...] = ()
    filled: bool = False


Keep = Callable[[RequestRecord], None]
"""Takes a record for good. Whoever simulates very many requests keeps less than all records."""

OnFinish = Callable[[RequestRecord], Sequence[SimRequest]]
"""Told of every finished request; returns requests that follow from it (the next turn, the next of a closed loop)."""


def no_sequel(record: RequestRecord) -> Sequence[SimRequest]:
    """An open loop: nothing follows from a finished request."""
    return ()


@lru_cache(maxsize=4096)
def _params(output_tokens: int) -> SamplingParams:
    """Greedy, of exactly this length; kept, because checking the values takes as long as a step."""
    return SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True)


class Replica:
    """Serves requests until a given time. ``stepping`` turns leaps off: slower, and the same records.

    Records go into ``records``, and the steps that computed prompts into ``steps``; or records go to ``keep``, and no
    step is kept. What the steps cost is in ``runner.ledger``.
    """

    def __init__(
        self,
        machine: Machine,
        config: EngineConfig,
        *,
        on_finish: OnFinish = no_sequel,
        keep: Keep | None = None,
        stepping: bool = False,
        name: str = "sim",
    ) -> None:
        self.clock = VirtualClock()
        limit = None
        if config.kv.memory_bytes is not None:
            per_token = machine.spec.kv_bytes_per_token() / machine.layout.devices
            limit = max(1, int(config.kv.memory_bytes / per_token / config.kv.block_tokens))
        self.runner = RooflineRunner(machine, self.clock, block_tokens=config.kv.block_tokens, blocks=limit, name=name)
        self._cache = FilledCache(self.runner.cache, prefix_caching=config.kv.prefix_caching)
        self.scheduler = Scheduler(config, self._cache, max_model_len=config.max_model_len or machine.spec.max_context)
        self.records: list[RequestRecord] = []
        self.steps: list[StepRecord] = []
        self._keep, self._keeps_steps = keep or self.records.append, keep is None
        self._on_finish, self._stepping = on_finish, stepping
        self._pending: list[tuple[float, int, SimRequest]] = []
        self._tickets = 0
        self._full = False

    @property
    def load(self) -> int:
        """Requests that are underway or on their way."""
        return self.scheduler.num_running + self.scheduler.num_waiting + len(self._pending)

    def submit(self, request: SimRequest) -> None:
        """Let a request arrive at its time (at once if that has passed)."""
        self._tickets += 1
        heapq.heappush(self._pending, (request.arrival, self._tickets, request))

    def run(self, until: float) -> None:
        """Serve until the clock reaches ``until`` or nothing is left to do. The last step may end later."""
        while self.clock.now() < until:
            self._admit()
            if not self.scheduler.has_work:
                if not self._pending or self._pending[0][0] >= until:
                    return
                self.clock.advance(max(0.0, self._pending[0][0] - self.clock.now()))
            elif not self._leap(until):
                self._step()

    def idle_until(self, instant: float) -> None:
        """Let an idle engine's time pass."""
        if not self.scheduler.has_work:
            self.clock.advance(max(0.0, instant - self.clock.now()))

    def abort(self) -> None:
        """End what is underway, so that its tokens so far are on record; nothing follows from it."""
        for request in tuple(self.scheduler.running()):
            self.scheduler.finish(request, FinishReason.ABORT)
            self._keep(request_record(request, self.clock.now()))
        self._pending.clear()

    def _admit(self) -> None:
        while self._pending and self._pending[0][0] <= self.clock.now():
            arrival, _, request = heapq.heappop(self._pending)
            state = Request(
                request.id, request.prompt, _params(request.output_tokens), Seconds(arrival), request.session
            )
            state.block_hashes.extend(request.names)
            if request.filled:
                state.output.append(TOKEN.token)
                state.token_times.append(Seconds(arrival))
                self._cache.expect(state)
            self.scheduler.add(state)
            self._full = False

    def _leap(self, until: float) -> bool:
        """Take all steps up to the next event at once; False if the next step may be one."""
        if self._stepping or (self.scheduler.num_waiting and not self._full):
            return False
        running = tuple(self.scheduler.running())
        steps = leapable(self.scheduler, running)
        if not steps:
            return False
        limit = min(until, self._pending[0][0]) if self._pending else until
        for request in leap(self.scheduler, self.runner, running, steps, limit):
            self._full = False
            self._close(request)
        return True

    def _step(self) -> None:
        batch = self.scheduler.schedule()
        if batch is None:
            return
        result = self.runner.run(batch)
        settled = self.scheduler.settle(batch, result)
        ended = [token.request for token in settled.tokens if token.request.finish_reason is not None]
        prefills = any(share.phase is Phase.PREFILL for share in settled.shares)
        # A step without prompts and ends leaves everybody who waits where he is, and so do those that follow it.
        self._full = not prefills and not ended
        if prefills and self._keeps_steps:
            self.steps.append(StepRecord(result.start, result.end, self.runner.devices, settled.shares))
        for request in ended:
            self._close(request)

    def _close(self, request: Request) -> None:
        record = request_record(request, self.clock.now())
        self._keep(record)
        for sequel in self._on_finish(record):
            self.submit(sequel)

"""Recorded agentic sessions over four engines: what each routing policy keeps of one engine's hit rate, and how evenly.

Scheduler, cache and events are the engine's own; only the time of a step is simulated (an H100 with an 8B model).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from energyopt.core.records import RequestRecord
from energyopt.core.units import Bytes, Seconds
from engine.kv.events import EventLog, Kind, watch
from engine.routing.book import Book, Ticket
from engine.routing.choose import PolicyName, make_policy
from engine.routing.desk import Asked, Desk
from engine.routing.names import Prompt, Scheme
from tests.bench.figures import Report
from tuner.simulator.constants import load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine
from tuner.simulator.models import load_model_spec
from tuner.simulator.replica import Replica, SimRequest
from tuner.workload.trace import Call, TraceSession
from tuner.workload.weka import read_weka

pytestmark = pytest.mark.bench
BLOCK = 64
ENGINES = 4
LANES = 24
"""Sessions at a time, over all engines."""
STEP = 0.02
"""Seconds of simulated time in which events and ends reach the router."""
GPU = load_gpu("h100")
SPEC = load_model_spec("llama-3.1-8b")
MACHINE = Machine(SPEC, GPU, ParallelLayout(), load_constants(GPU, moe=False))


def _show(figure: str) -> None:
    print(f"\n{figure}")  # noqa: T201 - a bench exists to print its figures


class TracePrompt(Prompt):
    """A prompt of which the trace says the blocks' names, and nothing else."""

    def __init__(self, call: Call) -> None:
        super().__init__(ids=range(call.input_tokens or 0))
        self.names = [name.to_bytes(16, "big") for name in call.blocks[: (call.input_tokens or 0) // BLOCK]]

    def chunks(self) -> list[bytes]:
        return self.names

    def blocks(self, scheme: Scheme) -> list[bytes] | None:
        return self.names


@dataclass
class Talk:
    """A session on its way: its calls one after the other, whoever of its agents made them."""

    session: TraceSession
    calls: list[Call]
    at: int = 0


@dataclass
class Fleet:
    """Engines on clocks of their own that are kept together, and a desk before them."""

    policy: PolicyName
    engines: int
    blocks: int
    events: bool
    done: list[tuple[int, RequestRecord]] = field(default_factory=list)

    def __post_init__(self) -> None:
        memory = Bytes(int(self.blocks * BLOCK * SPEC.kv_bytes_per_token()))
        config = EngineConfig(model="llama", kv=KvConfig(block_tokens=BLOCK, memory_bytes=memory), max_num_seqs=256)
        self.desk = Desk(make_policy(self.policy), Book(), chunks_held=self.blocks)
        self.names = [f"engine-{number}" for number in range(self.engines)]
        self.replicas = [Replica(MACHINE, config, on_finish=self._ended, name=name) for name in self.names]
        self.logs = [EventLog() for _ in self.names]
        self.tickets: dict[str, tuple[Ticket, Talk]] = {}
        self.due: list[tuple[float, int, Talk]] = []
        self.waiting: list[Talk] = []
        if self.events:
            for name, replica, log in zip(self.names, self.replicas, self.logs, strict=True):
                watch(replica.scheduler.cache, log)
                self.desk.feed(name, Scheme(BLOCK, BLOCK))

    def play(self, sessions: Sequence[TraceSession]) -> None:
        """All sessions, ``LANES`` at a time."""
        talks = [Talk(session, sorted(session.calls, key=lambda call: call.start or 0.0)) for session in sessions]
        self.waiting = talks[LANES:]
        for number, talk in enumerate(talks[:LANES]):
            heapq.heappush(self.due, (0.01 * number, number, talk))
        now = 0.0
        while self.due or self.tickets:
            while self.due and self.due[0][0] <= now:
                self._send(heapq.heappop(self.due)[2], now)
            now += STEP
            for replica in self.replicas:
                replica.run(now)
                replica.idle_until(now)
            self._listen()

    def _send(self, talk: Talk, now: float) -> None:
        call, number = talk.calls[talk.at], f"{talk.session.id}/{talk.at}"
        prompt = TracePrompt(call)
        choice, ticket = self.desk.give(
            Asked(prompt, Seconds(now), talk.session.id, call.output_tokens or 0), self.names
        )
        self.tickets[number] = ticket, talk
        filler, output = (0,) * (call.input_tokens or 1), max(1, call.output_tokens or 1)
        engine = self.replicas[self.names.index(choice.worker)]
        engine.submit(SimRequest(number, now, filler, output, talk.session.id, tuple(prompt.names)))

    def _ended(self, record: RequestRecord) -> Sequence[SimRequest]:
        ticket, talk = self.tickets.pop(record.request_id)
        self.desk.book.ended(ticket, record.end, record.output_tokens)
        self.done.append((self.names.index(ticket.worker), record))
        talk.at += 1
        if talk.at == len(talk.calls) and self.waiting:
            talk = self.waiting.pop(0)
        if talk.at < len(talk.calls):
            think = talk.calls[talk.at].think_time or 0.0
            heapq.heappush(self.due, (record.end + think, len(self.done), talk))
        return ()

    def _listen(self) -> None:
        """What the engines' events say; a first token tells that a prompt is computed."""
        for name, replica, log in zip(self.names, self.replicas, self.logs, strict=True):
            for request in replica.scheduler.running():
                if request.output:
                    self.desk.book.began(self.tickets[request.id][0])
            before = log.newest
            log.collect()
            for event in (event for batch in log.after(before) or () for event in batch.events):
                if event.kind is Kind.STORED:
                    self.desk.blocks.stored(name, event.names)
                elif event.kind is Kind.REMOVED:
                    self.desk.blocks.removed(name, event.names)

    @property
    def hit_rate(self) -> float:
        prompt = sum(record.prompt_tokens for _, record in self.done)
        return sum(record.cached_tokens or 0 for _, record in self.done) / prompt

    @property
    def imbalance(self) -> float:
        """The busiest engine's work over the mean, less one; work is what was computed: prompt and output tokens."""
        work = [0] * self.engines
        for engine, record in self.done:
            work[engine] += record.prompt_tokens - (record.cached_tokens or 0) + record.output_tokens
        return max(work) * self.engines / sum(work) - 1.0


@pytest.fixture(scope="module")
def sessions() -> list[TraceSession]:
    folder = Path(__file__).parents[3] / "shared" / "data" / "traces" / "claude_code_weka" / "thin16"
    if not folder.is_dir():
        pytest.skip(f"the published traces are not at {folder}")
    return [session for part in ("main", "subagents") for session in read_weka(folder / part).sessions]


AWARE = ("prefix", "session")
RUNS: tuple[tuple[PolicyName, bool], ...] = (
    ("round-robin", True),
    ("least-loaded", True),
    ("session", False),
    ("session", True),
    ("prefix", False),
    ("prefix", True),
)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("blocks", [400, 1600], ids=["tight", "ample"])
def test_aware_policies_keep_the_hit_rate_of_one_engine(
    sessions: list[TraceSession], blocks: int, figure: Report
) -> None:
    whole = Fleet("least-loaded", 1, ENGINES * blocks, events=False)
    whole.play(sessions)
    lines = [f"{len(whole.done)} requests of {len(sessions)} sessions, {blocks} blocks of {BLOCK} tokens an engine"]
    lines.append(f"one engine with all {ENGINES * blocks} blocks: hit rate {whole.hit_rate:.2%}")
    aware: list[tuple[float, float]] = []
    blind: list[float] = []
    for policy, events in RUNS:
        fleet = Fleet(policy, ENGINES, blocks, events)
        fleet.play(sessions)
        assert len(fleet.done) == len(whole.done)
        share, known = fleet.hit_rate / whole.hit_rate, "engines' events" if events else "requests sent"
        lines.append(
            f"{policy:12} by {known:15}: hit rate {fleet.hit_rate:.2%}, {share:.1%} of one engine's; "
            f"imbalance {fleet.imbalance:.1%}"
        )
        told = f"routing {policy} by {known}, {blocks} blocks an engine"
        figure(f"{told}: hit rate beside one engine", 100 * share, "%", "at least 95" if policy in AWARE else "")
        figure(f"{told}: imbalance", 100 * fleet.imbalance, "%", "under 15" if policy in AWARE else "")
        if policy in AWARE:
            aware.append((share, fleet.imbalance))
        else:
            blind.append(share)
    _show("\n".join(lines))
    assert all(share >= 0.95 and imbalance < 0.15 for share, imbalance in aware)
    assert max(blind) < 0.9

"""Whole replays against the fake server: trees, joins, loops, windows, figures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import ConfigError, EnergyoptError, EngineDeadError, EngineError, PromptTooLongError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds
from tuner.replay.ask import Ask, ReplayClient, Reply
from tuner.replay.dispatch import Dispatcher
from tuner.replay.fake import Behaviour, FakeServer, behaving
from tuner.replay.figures import figures
from tuner.replay.foresight import Foresight
from tuner.replay.http import HttpClient
from tuner.replay.lag import ClientLoad
from tuner.replay.loads import ClosedLoop, Deck, Load, OpenLoop, RandomDeparture, drawn_times, recorded_times
from tuner.replay.measure import Recording, ReplayPlan, replay
from tuner.replay.pacer import Pace, Pacer
from tuner.replay.player import Player, Stage, Start, recorded_gap
from tuner.replay.render import Calibration, ChatRenderer, IdRenderer
from tuner.replay.result import Subject
from tuner.workload.agentic import AgenticShape, agentic_trace
from tuner.workload.arrivals import GammaArrivals
from tuner.workload.lengths import Lengths, UniformLength
from tuner.workload.synthetic import TextShape, synthetic_trace
from tuner.workload.trace import Agent, Call, Trace, TraceSession

CLOCK = MonotonicClock()


@dataclass
class Scripted:
    """Answers each request after ``delay``; ``fail`` maps the number of a request to its error."""

    delay: float = 0.002
    fail: dict[int, EnergyoptError] = field(default_factory=dict)
    asked: list[Ask] = field(default_factory=list)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    most: int = 0
    now: int = 0

    async def send(self, ask: Ask) -> Reply:
        number, begun = len(self.asked), CLOCK.now()
        self.asked.append(ask)
        error = self.fail.get(number)
        if isinstance(error, EngineDeadError):
            raise error
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.delay)
        self.now -= 1
        ended = CLOCK.now()
        self.spans[ask.id] = (begun, ended)
        reason = FinishReason.ERROR if error else FinishReason.LENGTH
        return Reply(RequestRecord(ask.id, begun, ended, 1, 0, 1, reason, (ended,), ask.session), error=error)

    def abort(self, request_id: str) -> None:
        return None


def stage(client: ReplayClient, pace: Pace | None = None, block: int | None = 64) -> Stage:
    pacer = Pacer(CLOCK, None)
    renderer = ChatRenderer(block, calibration=Calibration(), answers="recorded")
    return Stage(Dispatcher(client, CLOCK, pacer), renderer, pacer, pace or Pace(waits=False), Foresight(block))


def calls(count: int, start: float = 0.0, step: float = 10.0) -> tuple[Call, ...]:
    return tuple(
        Call(64, 2, (index,), Seconds(start + index * step), server_time=Seconds(2.0)) for index in range(count)
    )


def tree() -> TraceSession:
    """The root's third call waits for the sub-agent, its second does not."""
    child = Agent("a", calls(3, start=3.0, step=3.0), 0, 1, Seconds(3.0), duration=Seconds(12.0))
    return TraceSession("t", (Agent("root", calls(4)), child))


async def test_a_tree_keeps_its_order() -> None:
    client = Scripted()
    session = tree()
    assert session.joined_at(1) == 2
    await Player(stage(client), Start("t", session)).play()
    assert len(client.asked) == 7
    spans = [client.spans[ask.id] for ask in client.asked]
    last_child_end = max(end for _, end in spans[1:-2])
    assert spans[-2][0] >= last_child_end - 1e-4, "the third call of the root left after the sub-agent had ended"
    assert client.most == 2


def test_recorded_gaps_are_end_to_start() -> None:
    session = tree()
    assert recorded_gap(session, 0, 1) == 8.0
    assert recorded_gap(session, 0, 2) == 5.0, "from the end of the sub-agent at 15 s to 20 s"
    thought = TraceSession("s", (Agent("root", (Call(1, 1), Call(1, 1, think_time=Seconds(4.0)))),))
    assert recorded_gap(thought, 0, 1) == 4.0


async def test_starts_of_a_recording_count_where_durations_are_unknown() -> None:
    client = Scripted()
    session = TraceSession("s", (Agent("root", tuple(Call(64, 1, (n,), Seconds(n * 0.1)) for n in range(3))),))
    begun = CLOCK.now()
    await Player(stage(client, Pace()), Start("s", session)).play()
    starts = [client.spans[ask.id][0] - begun for ask in client.asked]
    assert all(start >= due for start, due in zip(starts, (0.0, 0.1, 0.2), strict=True))


async def test_a_closed_loop_keeps_its_lanes_busy() -> None:
    client, trace = Scripted(0.01), synthetic_trace(0, sessions=6, shape=TextShape(turns=UniformLength(2, 2)))
    await ClosedLoop(Deck(trace, rounds=2).deal(), 3).run(stage(client))
    assert client.most == 3
    assert len(client.asked) == 24
    texts = [str((ask.prompt.messages or ())[0]["content"]) for ask in client.asked]
    assert len(set(texts)) == 24, "a second round finds nothing of the first in the cache"


async def test_cache_bust_makes_every_start_its_own() -> None:
    client = Scripted()
    shape = TextShape(shared_tokens=128, input=UniformLength(64, 64))
    await ClosedLoop(Deck(synthetic_trace(0, sessions=3, shape=shape), bust=True, rounds=1).deal(), 1).run(
        stage(client)
    )
    fronts = {str((ask.prompt.messages or ())[0]["content"])[:200] for ask in client.asked}
    assert len(fronts) == 3
    assert all(ask.expected_cached == 0 for ask in client.asked)


async def test_without_bust_the_shared_front_is_shared() -> None:
    client = Scripted()
    shape = TextShape(shared_tokens=128, input=UniformLength(64, 64))
    await ClosedLoop(Deck(synthetic_trace(0, sessions=3, shape=shape), rounds=1).deal(), 1).run(stage(client))
    assert [ask.expected_cached for ask in client.asked] == [0, 128, 128]


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    client, trace = Scripted(0.2), synthetic_trace(0, sessions=5)
    await OpenLoop(Deck(trace, rounds=1).deal(), [Seconds(0.01 * n) for n in range(5)]).run(stage(client))
    assert client.most == 5


def test_arrivals_are_recorded_or_drawn() -> None:
    trace = synthetic_trace(0, sessions=4, arrivals=GammaArrivals(2.0))
    assert recorded_times(trace, 2.0)[-1] == (trace.sessions[-1].arrival or 0) / 2
    with pytest.raises(ConfigError, match="no arrival times"):
        recorded_times(synthetic_trace(0, sessions=1), 1.0)
    assert drawn_times(GammaArrivals(2.0), 3, 1) == drawn_times(GammaArrivals(2.0), 3, 1)


async def test_a_session_that_outgrows_the_context_is_cut() -> None:
    client = Scripted(fail={1: PromptTooLongError("too long")})
    scene = stage(client)
    await Player(
        scene, Start("s", synthetic_trace(0, sessions=1, shape=TextShape(turns=UniformLength(3, 3))).sessions[0])
    ).play()
    assert (len(client.asked), len(scene.dispatcher.cut), scene.failed_sessions) == (2, 1, 0)


async def test_a_dead_engine_ends_the_replay() -> None:
    client = Scripted(fail={5: EngineDeadError("gone")})
    load = ClosedLoop(Deck(synthetic_trace(0, sessions=3)).deal(), 2)
    with pytest.raises(EngineDeadError):
        await replay(load, stage(client), ReplayPlan(window=Seconds(5)), CLOCK, lambda progress: None)


async def test_too_little_workload_is_an_error() -> None:
    plan = ReplayPlan(window=None)
    with pytest.raises(EngineError, match="without a single request"):
        await replay(OpenLoop(iter(()), []), stage(Scripted()), plan, CLOCK, lambda progress: None)


SUBJECT = Subject(endpoint="x", model="fake", workload="w", mode="closed", seed=0)


async def run(client: HttpClient, load: Load, plan: ReplayPlan, scene: Stage) -> Recording:
    return await replay(load, scene, plan, CLOCK, lambda progress: None)


async def test_a_replay_measures_what_the_server_does(server: FakeServer, client: HttpClient) -> None:
    server.behaviour = Behaviour(ttft=0.02, itl=0.005)
    trace = synthetic_trace(0, sessions=200, shape=TextShape(UniformLength(100, 100), UniformLength(10, 10)))
    plan = ReplayPlan(warmup=Seconds(0.2), window=Seconds(1.0), bracket=Seconds(0.1))
    recording = await run(client, ClosedLoop(Deck(trace).deal(), 4), plan, stage(client))
    slos = [Slo.parse("ttft:p90<30s"), Slo.parse("goodput>0.1")]
    result = figures(recording, SUBJECT, slos, None, datetime.now(UTC))
    assert result.run.requests > 4
    assert result.tokens_known
    assert result.run.power_reasons[0].startswith("no_meter")
    assert result.joules_per["output_token"] is None
    assert result.per_request["itl"].p50 >= 0.005
    assert result.good_share == 1.0
    assert result.goodput == pytest.approx(result.run.requests / result.run.window)
    assert 0 < result.client.cpu <= 2
    assert abs(result.run.output_tokens - 10 * result.run.requests) <= 40, "4 lanes straddle each edge"
    assert result.valid or any("client" in reason for reason in result.reasons)


async def test_cached_tokens_agree_with_the_server_and_with_foresight(server: FakeServer, client: HttpClient) -> None:
    fine = FakeServer(block=64)
    async with fine.serving():
        from tuner.replay.http import Endpoint

        async with HttpClient(Endpoint(fine.url, "fake")) as exact:
            trace = agentic_trace(
                3, sessions=2, shape=AgenticShape(branching=0.2, calls=Lengths(12, 0.5, 4, 30)).scaled(64)
            )
            scene = stage(exact)
            scene.rendering = IdRenderer(64)
            recording = await run(exact, ClosedLoop(Deck(trace, rounds=1).deal(), 1), ReplayPlan(window=None), scene)
    result = figures(recording, SUBJECT, [], None, datetime.now(UTC))
    assert result.run.requests == len(list(trace.calls))
    assert result.prefixes.cached_tokens == fine.cached_tokens == result.prefixes.expected_tokens
    assert result.prefixes.prompt_tokens == fine.prompt_tokens == sum(call.input_tokens or 0 for call in trace.calls)
    assert result.prefixes.cached_tokens > 0


async def test_failures_make_a_run_invalid(server: FakeServer, client: HttpClient) -> None:
    behaving(server, fail_after=2)
    plan = ReplayPlan(warmup=Seconds(0.0), window=Seconds(0.4), bracket=Seconds(0.0))
    recording = await run(client, ClosedLoop(Deck(synthetic_trace(0, sessions=9)).deal(), 2), plan, stage(client))
    result = figures(recording, SUBJECT, [Slo.parse("ttft:p90<1s")], None, datetime.now(UTC))
    assert result.run.failed_requests == result.run.requests > 0
    assert result.run.latencies["ttft"].p90 == float("inf")
    assert not result.valid
    assert result.reasons[-1].startswith("no_requests") or "too_many_errors" in result.reasons[-1]
    assert not result.run.feasible


async def test_no_usage_no_token_figures(server: FakeServer, client: HttpClient) -> None:
    behaving(server, usage="none")
    plan = ReplayPlan(warmup=Seconds(0.0), window=Seconds(0.3), bracket=Seconds(0.0))
    recording = await run(client, ClosedLoop(Deck(synthetic_trace(0, sessions=9)).deal(), 2), plan, stage(client))
    result = figures(recording, SUBJECT, [], None, datetime.now(UTC))
    assert result.rates["output_tok_s"] is None
    assert not result.valid
    assert any(reason.startswith("no_usage") for reason in result.reasons)


async def test_users_who_leave_are_no_failures(server: FakeServer, client: HttpClient) -> None:
    behaving(server, itl=0.05)
    scene = stage(client)
    scene.abandonment = RandomDeparture(1.0, Seconds(0.05), 0)
    plan = ReplayPlan(warmup=Seconds(0.0), window=Seconds(0.5), bracket=Seconds(0.0))
    recording = await run(client, ClosedLoop(Deck(synthetic_trace(0, sessions=9)).deal(), 2), plan, scene)
    result = figures(recording, SUBJECT, [], None, datetime.now(UTC))
    assert result.left > 0
    assert (result.run.requests, result.run.failed_requests) == (0, 0)


@pytest.mark.parametrize(
    ("stall", "slo"), [("ttft", "ttft:p90<50ms"), ("itl", "itl:p90<50ms"), ("ttft", "e2e:p90<50ms")]
)
async def test_a_server_that_stalls_misses_its_slos(
    server: FakeServer, client: HttpClient, stall: str, slo: str
) -> None:
    plan = ReplayPlan(warmup=Seconds(0.0), window=Seconds(0.3), bracket=Seconds(0.0))
    load = ClosedLoop(Deck(synthetic_trace(0, sessions=9)).deal(), 2)
    stalls = partial(behaving, server, **{stall: 60.0})
    recording = await replay(load, stage(client), plan, CLOCK, lambda progress: None, at_edge=stalls)
    stopped = [reply for reply in recording.replies if reply.stopped]
    assert stopped, "both lanes wait until the load ends"
    assert not any(reply.left for reply in recording.replies), "no user left as planned"
    result = figures(recording, SUBJECT, [Slo.parse(slo)], None, datetime.now(UTC))
    assert result.run.verdicts[0].state == "violated"
    assert not result.run.feasible
    assert (result.left, result.run.failed_requests) == (0, 0)
    assert result.run.prompt_tokens is not None, "those of answers that ended"


def test_a_client_that_lagged_measured_itself() -> None:
    assert ClientLoad(Seconds(0.5), Seconds(0.0), 0.1).faults[0].startswith("client_lagged")
    assert ClientLoad(Seconds(0.0), Seconds(0.2), 0.1).faults[0].startswith("client_stalled")
    assert ClientLoad(Seconds(0.01), Seconds(0.01), 0.9).faults == ()


def test_an_empty_agent_is_no_problem() -> None:
    trace = Trace("t", (TraceSession("s", (Agent("root", ()),)),))
    client = Scripted()
    asyncio.run(ClosedLoop(Deck(trace, rounds=1).deal(), 1).run(stage_in_loop(client)))
    assert client.asked == []


def stage_in_loop(client: ReplayClient) -> Stage:
    async def make() -> Stage:
        return stage(client)

    return asyncio.run(make())

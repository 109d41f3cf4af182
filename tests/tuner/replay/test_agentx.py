"""The rules of AgentX: where lanes begin, what is primed, how long a window has to be."""

from __future__ import annotations

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from tuner.replay.agentx import SHORTEST, WARMUP_REQUESTS, AgentxLoop, faults, start_inside
from tuner.replay.dispatch import Dispatcher
from tuner.replay.fake import FakeServer
from tuner.replay.foresight import Foresight
from tuner.replay.http import Endpoint, HttpClient
from tuner.replay.measure import ReplayPlan, replay
from tuner.replay.pacer import Pace, Pacer
from tuner.replay.player import Player, Stage, Start
from tuner.replay.render import IdRenderer
from tuner.workload.agentic import AgenticShape, agentic_trace
from tuner.workload.chat import chat_workload
from tuner.workload.synthetic import trace_of
from tuner.workload.trace import Agent, Call, Trace, TraceSession

CLOCK = MonotonicClock()


def stage(client: HttpClient) -> Stage:
    pacer = Pacer(CLOCK, Seconds(0.05))
    return Stage(Dispatcher(client, CLOCK, pacer), IdRenderer(64), pacer, Pace(), Foresight(64))


def calls(*starts: float) -> tuple[Call, ...]:
    return tuple(
        Call(64 * (n + 1), 2, tuple(range(n + 1)), Seconds(start), Seconds(0.001)) for n, start in enumerate(starts)
    )


def session() -> TraceSession:
    child = Agent("a", calls(3, 5, 7), 0, 1, Seconds(3), Seconds(5))
    return TraceSession("t", (Agent("root", calls(0, 9, 10)), child))


@pytest.mark.parametrize(("share", "skip"), [(0.0, (0, 0)), (0.45, (1, 1)), (0.75, (1, 3)), (1.0, (2, 3))])
def test_a_start_inside_leaves_what_is_still_to_come(share: float, skip: tuple[int, int]) -> None:
    assert start_inside(Start("t", session()), share).skip == skip


def test_a_session_without_times_keeps_a_call() -> None:
    bare = TraceSession("s", (Agent("root", (Call(64, 1, (0,)),)),))
    assert start_inside(Start("s", bare), 0.75).skip == (0,)


async def test_a_sub_agent_that_ran_goes_on() -> None:
    async with FakeServer(block=64).serving() as server, HttpClient(Endpoint(server.url, "fake")) as client:
        await Player(stage(client), start_inside(Start("t", session()), 0.45)).play()
        assert len(server.bodies) == 4, "two calls of the root and two of the sub-agent were left"


async def test_priming_asks_for_one_token_and_fills_the_cache() -> None:
    trace = agentic_trace(1, sessions=3, shape=AgenticShape().scaled(64))
    async with FakeServer(block=64).serving() as server, HttpClient(Endpoint(server.url, "fake")) as client:
        scene, loop = stage(client), AgentxLoop(trace, 2, seed=5)
        await loop.prime(scene)
        primed = sum(min(WARMUP_REQUESTS, start.skip[0]) for start in loop.first)
        assert len(server.bodies) >= primed > 0
        assert {body["max_tokens"] for body in server.bodies} == {1}
        before = len(server.bodies)
        plan = ReplayPlan(warmup=Seconds(0), window=Seconds(1.0), bracket=Seconds(0))
        recording = await replay(loop, scene, plan, CLOCK, lambda progress: None)
        asked = [recording.asks[reply.record.request_id] for reply in recording.replies]
        assert all(ask.warming for ask in asked[:before])
        first = next(reply for reply in recording.replies[before:] if not reply.record.failed)
        assert first.record.cached_tokens == recording.asks[first.record.request_id].expected_cached
        assert first.record.cached_tokens, "the lane begins on a warm cache"
        sessions = {ask.session for ask in asked}
        assert len(sessions) >= 2


def test_a_short_window_does_not_count() -> None:
    assert faults(SHORTEST) == ()
    assert faults(Seconds(60))[0].startswith("short: the window is 60 s")


def test_only_complete_prompts_are_agentx() -> None:
    with pytest.raises(ConfigError, match="complete prompts with block ids"):
        AgentxLoop(trace_of(chat_workload(0, sessions=1)), 1, 0)
    with pytest.raises(ConfigError, match="at least 1 lane"):
        AgentxLoop(Trace("t", (session(),), 64), 0, 0)

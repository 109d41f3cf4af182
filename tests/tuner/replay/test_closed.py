"""The closed loop of a trial: lanes, history, salt, failures, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import (
    EnergyoptError,
    EngineDeadError,
    EngineError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
)
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.units import Seconds
from energyopt.core.workload import Session, Turn, Workload
from tuner.replay.ask import Ask, Reply
from tuner.replay.closed import closed_loop
from tuner.replay.dispatch import Dispatcher
from tuner.workload.trace import Message

Verdict = EnergyoptError | None
Asked = tuple[str, str, list[Message], int]


class ScriptedClient:
    """Answers after ``delay``; ``judge`` may refuse a request by its messages; ``deaf`` ignores aborts."""

    def __init__(
        self,
        delay: float = 0.001,
        judge: Callable[[Sequence[Message]], Verdict] = lambda messages: None,
        *,
        deaf: bool = False,
    ) -> None:
        self.asked: list[Asked] = []
        self.now = 0
        self.most = 0
        self._delay = delay
        self._judge = judge
        self._deaf = deaf
        self._aborted: dict[str, asyncio.Event] = {}

    async def send(self, ask: Ask) -> Reply:
        messages = list(ask.prompt.messages or ())
        self.asked.append((ask.id, ask.session, messages, ask.output_tokens))
        error = self._judge(messages)
        if isinstance(error, EngineDeadError):
            raise error
        if error is not None:
            return Reply(self._record(ask, FinishReason.ERROR), error=error)
        self.now += 1
        self.most = max(self.most, self.now)
        self._aborted[ask.id] = asyncio.Event()
        try:
            await asyncio.wait_for(self._aborted[ask.id].wait(), self._delay)
        except TimeoutError:
            return Reply(self._record(ask, FinishReason.LENGTH), f"answer {len(self.asked)}")
        finally:
            self.now -= 1
        return Reply(self._record(ask, FinishReason.ABORT), stopped=True)

    def abort(self, request_id: str) -> None:
        if not self._deaf and request_id in self._aborted:
            self._aborted[request_id].set()

    @staticmethod
    def _record(ask: Ask, reason: FinishReason) -> RequestRecord:
        return RequestRecord(ask.id, Seconds(0.0), Seconds(1.0), 3, 0, 2, reason, (), ask.session)


def workload(turns: int = 2, sessions: int = 3, concurrency: int = 2, think_time: float = 0.0) -> Workload:
    return Workload(
        name="w",
        seed=0,
        concurrency=concurrency,
        sessions=tuple(
            Session(
                id=f"s{s}",
                system="be brief",
                turns=tuple(
                    Turn(text=f"question {s}.{t}", output_tokens=2 + t, think_time=Seconds(think_time))
                    for t in range(turns)
                ),
            )
            for s in range(sessions)
        ),
    )


class Looped:
    """The loop of a trial over a client, and what it counted."""

    def __init__(self, client: ScriptedClient, work: Workload) -> None:
        self.load, self.stage = closed_loop(work, client, MonotonicClock())

    @property
    def records(self) -> list[RequestRecord]:
        return [reply.record for reply in self.counts.replies]

    @property
    def counts(self) -> Dispatcher:
        return self.stage.dispatcher

    async def run(self) -> None:
        await self.load.run(self.stage)


async def run_until(load: Looped, seen: Callable[[], bool]) -> None:
    """Run the loop until something has been seen."""
    running = asyncio.create_task(load.run())
    async with asyncio.timeout(20):
        while not seen() and not running.done():
            await asyncio.wait([running], timeout=0.001)
    await load.counts.stop()
    await running


async def test_every_lane_is_busy_and_none_holds_two_requests() -> None:
    client = ScriptedClient()
    load = Looped(client, workload(concurrency=3))
    await run_until(load, lambda: len(load.records) > 6)
    assert client.most == 3
    assert client.now == 0
    assert len(load.records) == len(client.asked) > 6  # more than one round of 3 sessions x 2 turns
    assert len({record.request_id for record in load.records}) == len(load.records)


async def test_live_answers_become_history() -> None:
    client = ScriptedClient()
    await run_until(Looped(client, workload(turns=3, sessions=1, concurrency=1)), lambda: len(client.asked) > 2)
    first, second, third = (messages for _, _, messages, _ in client.asked[:3])
    assert first == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "question 0.0"}]
    assert second == [
        *first,
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "question 0.1"},
    ]
    assert third[: len(second) + 1] == [*second, {"role": "assistant", "content": "answer 2"}]
    assert [tokens for *_, tokens in client.asked[:3]] == [2, 3, 4]


async def test_a_second_round_has_new_text_behind_the_same_system_prompt() -> None:
    client = ScriptedClient(delay=0.0)
    await run_until(Looped(client, workload(turns=1, sessions=2, concurrency=1)), lambda: len(client.asked) > 5)
    rounds = [[messages for _, _, messages, _ in client.asked[2 * r : 2 * r + 2]] for r in range(3)]
    for a, b, c in zip(*rounds, strict=True):
        assert a[0] == b[0] == c[0] == {"role": "system", "content": "be brief"}
        texts = [str(messages[1]["content"]) for messages in (a, b, c)]
        # different from the first character on, or a shared prefix would be found in the cache
        assert texts[0][0] != texts[1][0]
        assert len(set(texts)) == 3
        assert texts[1].endswith(texts[0])
    assert len({session for _, session, _, _ in client.asked}) == len(client.asked)


async def test_thinking_delays_a_turn_and_a_stop_interrupts_it() -> None:
    client = ScriptedClient()
    loop = asyncio.get_running_loop()
    start = loop.time()
    await run_until(Looped(client, workload(concurrency=1, think_time=60.0)), lambda: loop.time() - start > 0.05)
    assert client.asked == []
    assert loop.time() - start < 1


async def test_a_session_that_outgrows_the_context_ends_early_and_is_no_failure() -> None:
    client = ScriptedClient(judge=lambda messages: PromptTooLongError("too long") if len(messages) > 3 else None)
    load = Looped(client, workload())
    await run_until(load, lambda: bool(load.counts.cut) and len(load.records) > 1)
    assert not any(record.failed and record.finish_reason is FinishReason.ERROR for record in load.records)
    assert not load.counts.errors


async def test_a_first_turn_that_does_not_fit_is_a_failure() -> None:
    load = Looped(ScriptedClient(judge=lambda messages: PromptTooLongError("too long")), workload())
    begun = asyncio.get_running_loop().time()
    await run_until(load, lambda: len(load.records) > 4)
    assert asyncio.get_running_loop().time() - begun > 2 * 0.05  # two lanes, each of which pauses
    assert load.counts.cut == []
    assert load.counts.errors["PromptTooLongError"] == len(load.records)
    assert all(record.failed for record in load.records)


async def test_a_failing_engine_is_not_hammered() -> None:
    client = ScriptedClient(judge=lambda messages: RequestError("no"))
    loop = asyncio.get_running_loop()
    start = loop.time()
    await run_until(Looped(client, workload(concurrency=1)), lambda: len(client.asked) > 2)
    assert loop.time() - start > 2 * 0.05


async def test_an_overloaded_engine_is_left_alone_for_as_long_as_it_asks() -> None:
    client = ScriptedClient(judge=lambda messages: OverloadedError("full", retry_after=30.0))
    load = Looped(client, workload(concurrency=1))
    start = asyncio.get_running_loop().time()
    await run_until(load, lambda: asyncio.get_running_loop().time() > start + 0.2)
    assert len(client.asked) == 1
    assert load.counts.errors == {"OverloadedError": 1}


async def test_a_dead_engine_ends_the_load() -> None:
    def judge(messages: Sequence[Message]) -> Verdict:
        return EngineDeadError("gone") if messages[-1]["content"] == "question 1.0" else None

    client = ScriptedClient(delay=60, judge=judge)
    with pytest.RaisesGroup(pytest.RaisesExc(EngineDeadError, match="gone")):
        await asyncio.wait_for(Looped(client, workload()).run(), 5)
    assert client.now == 0  # the other lane does not wait for its answer any more


async def test_a_stop_aborts_what_is_in_flight_and_keeps_its_record() -> None:
    client = ScriptedClient(delay=60)
    load = Looped(client, workload())
    await run_until(load, lambda: len(client.asked) == 2)
    assert [record.finish_reason for record in load.records] == [FinishReason.ABORT] * 2
    assert not load.counts.errors


async def test_an_engine_that_ignores_aborts_is_named() -> None:
    client = ScriptedClient(delay=60, deaf=True)
    load = Looped(client, workload())
    running = asyncio.create_task(load.run())
    while len(client.asked) < 2:
        await asyncio.wait([running], timeout=0.001)
    with pytest.raises(EngineError, match=r"2 requests did not end within 0\.1 s"):
        await load.counts.stop(Seconds(0.1))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

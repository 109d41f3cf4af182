"""The closed loop: lanes, history, salt, failures, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice

import pytest

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
from tuner.load import Answer, ClosedLoopLoad, Message, endless

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

    async def ask(self, messages: Sequence[Message], *, output_tokens: int, request_id: str, session: str) -> Answer:
        self.asked.append((request_id, session, list(messages), output_tokens))
        error = self._judge(messages)
        if isinstance(error, EngineDeadError):
            raise error
        if error is not None:
            return Answer("", self._record(request_id, session, FinishReason.ERROR), error)
        self.now += 1
        self.most = max(self.most, self.now)
        self._aborted[request_id] = asyncio.Event()
        try:
            await asyncio.wait_for(self._aborted[request_id].wait(), self._delay)
        except TimeoutError:
            return Answer(f"answer {len(self.asked)}", self._record(request_id, session, FinishReason.LENGTH))
        finally:
            self.now -= 1
        return Answer("", self._record(request_id, session, FinishReason.ABORT))

    def abort(self, request_id: str) -> None:
        if not self._deaf and request_id in self._aborted:
            self._aborted[request_id].set()

    @staticmethod
    def _record(request_id: str, session: str, reason: FinishReason) -> RequestRecord:
        return RequestRecord(request_id, Seconds(0.0), Seconds(1.0), 3, 0, 2, reason, (), session)


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


async def run_for(load: ClosedLoopLoad, seconds: float) -> None:
    running = asyncio.create_task(load.run())
    await asyncio.wait([running], timeout=seconds)
    await load.stop()
    await running


async def test_every_lane_is_busy_and_none_holds_two_requests() -> None:
    client = ScriptedClient()
    load = ClosedLoopLoad(client, workload(concurrency=3))
    await run_for(load, 0.1)
    assert client.most == 3
    assert client.now == 0
    assert len(load.records) == len(client.asked) > 6  # more than one round of 3 sessions x 2 turns
    assert len({record.request_id for record in load.records}) == len(load.records)


async def test_live_answers_become_history() -> None:
    client = ScriptedClient()
    await run_for(ClosedLoopLoad(client, workload(turns=3, sessions=1, concurrency=1)), 0.05)
    first, second, third = (messages for _, _, messages, _ in client.asked[:3])
    assert first == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "question 0.0"}]
    assert second == [
        *first,
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "question 0.1"},
    ]
    assert third[: len(second) + 1] == [*second, {"role": "assistant", "content": "answer 2"}]
    assert [tokens for *_, tokens in client.asked[:3]] == [2, 3, 4]


def test_a_second_round_has_new_text_behind_the_same_system_prompt() -> None:
    work = workload(sessions=2)
    first, second, third = (list(islice(endless(work), 2 * r, 2 * r + 2)) for r in range(3))
    assert tuple(first) == work.sessions
    for a, b, c in zip(first, second, third, strict=True):
        assert a.system == b.system == c.system
        assert len({a.id, b.id, c.id}) == 3
        assert len({session.turns[0].text for session in (a, b, c)}) == 3
        # different from the first character on, or a shared prefix would be found in the cache
        assert a.turns[0].text[0] != b.turns[0].text[0]
        assert b.turns[0].text.endswith(a.turns[0].text)
        assert a.turns[1:] == b.turns[1:]


async def test_thinking_delays_a_turn_and_a_stop_interrupts_it() -> None:
    client = ScriptedClient()
    loop = asyncio.get_running_loop()
    start = loop.time()
    await run_for(ClosedLoopLoad(client, workload(concurrency=1, think_time=60.0)), 0.05)
    assert client.asked == []
    assert loop.time() - start < 1


async def test_a_session_that_outgrows_the_context_ends_early_and_is_no_failure() -> None:
    client = ScriptedClient(judge=lambda messages: PromptTooLongError("too long") if len(messages) > 3 else None)
    load = ClosedLoopLoad(client, workload())
    await run_for(load, 0.05)
    assert load.cut_sessions > 0
    assert load.records
    assert not any(record.failed and record.finish_reason is FinishReason.ERROR for record in load.records)
    assert not load.errors


async def test_a_first_turn_that_does_not_fit_is_a_failure() -> None:
    load = ClosedLoopLoad(ScriptedClient(judge=lambda messages: PromptTooLongError("too long")), workload())
    await run_for(load, 0.12)
    assert load.cut_sessions == 0
    assert load.errors["PromptTooLongError"] == len(load.records) > 0
    assert all(record.failed for record in load.records)


async def test_a_failing_engine_is_not_hammered() -> None:
    client = ScriptedClient(judge=lambda messages: RequestError("no"))
    await run_for(ClosedLoopLoad(client, workload(concurrency=1)), 0.2)
    assert 1 < len(client.asked) <= 5  # one each 50 ms


async def test_an_overloaded_engine_is_left_alone_for_as_long_as_it_asks() -> None:
    client = ScriptedClient(judge=lambda messages: OverloadedError("full", retry_after=30.0))
    load = ClosedLoopLoad(client, workload(concurrency=1))
    await run_for(load, 0.2)
    assert len(client.asked) == 1
    assert load.errors == {"OverloadedError": 1}


async def test_a_dead_engine_ends_the_load() -> None:
    def judge(messages: Sequence[Message]) -> Verdict:
        return EngineDeadError("gone") if messages[-1]["content"] == "question 1.0" else None

    client = ScriptedClient(delay=60, judge=judge)
    with pytest.raises(EngineDeadError, match="gone"):
        await asyncio.wait_for(ClosedLoopLoad(client, workload()).run(), 5)
    assert client.now == 0  # the other lane does not wait for its answer any more


async def test_a_stop_aborts_what_is_in_flight_and_keeps_its_record() -> None:
    client = ScriptedClient(delay=60)
    load = ClosedLoopLoad(client, workload())
    await run_for(load, 0.02)
    assert [record.finish_reason for record in load.records] == [FinishReason.ABORT] * 2
    assert not load.errors


async def test_an_engine_that_ignores_aborts_is_named() -> None:
    load = ClosedLoopLoad(ScriptedClient(delay=60, deaf=True), workload())
    running = asyncio.create_task(load.run())
    await asyncio.sleep(0.02)
    with pytest.raises(EngineError, match=r"2 requests did not end within 0\.1 s"):
        await load.stop(Seconds(0.1))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

"""The embedded engine behind the load's client port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import EngineDeadError, OverloadedError, PromptTooLongError, RequestError
from energyopt.core.records import FinishReason
from energyopt.core.units import Seconds
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from tuner.evaluators.client import EngineClient
from tuner.replay.ask import Ask, Prompt, ReplayClient, Reply
from tuner.workload.trace import Message

HELLO: list[Message] = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., ReplayClient]]:
    """Builds clients of small fake engines and closes those at the end."""
    fronts: list[EngineFront] = []

    def make(*, queue: int = 8, seqs: int = 2, **runner: float) -> ReplayClient:
        clock, tokenizer = MonotonicClock(), FakeTokenizer()
        config = EngineConfig(model="fake", max_num_seqs=seqs, max_num_queued_reqs=queue)
        fake = FakeRunner(clock=clock, step_time=runner.get("step_time", 0.0))
        if "fail_at" in runner:
            fake = FakeRunner(clock=clock, fail_at=int(runner["fail_at"]))
        front = EngineFront(config, fake, tokenizer, max_model_len=64, clock=clock)
        fronts.append(front)
        return EngineClient(front, lambda messages: tokenizer.encode(str(messages[-1]["content"])), clock)

    yield make
    for front in fronts:
        front.close()


async def ask(client: ReplayClient, messages: list[Message], tokens: int, name: str = "r") -> Reply:
    asked = Ask(name, "s", Prompt(messages=messages), tokens, Seconds(0.0))
    return await asyncio.wait_for(client.send(asked), timeout=10)


async def test_the_answer_has_the_length_asked_for_and_is_the_same_each_time(
    connect: Callable[..., ReplayClient],
) -> None:
    client = connect()
    answers = [await ask(client, HELLO, 7, f"r{i}") for i in range(2)]
    assert len(answers[0].text) == 7  # the fake engine's tokens are letters
    assert answers[0].text == answers[1].text
    record = answers[0].record
    assert (record.prompt_tokens, record.output_tokens, record.session) == (5, 7, "s")
    assert record.finish_reason is FinishReason.LENGTH
    assert len(record.token_times) == 7


@pytest.mark.parametrize(
    ("messages", "tokens", "kind", "prompt_tokens"),
    [(HELLO, 60, PromptTooLongError, 5), ([{"role": "user", "content": ""}], 1, RequestError, 0)],
)
async def test_a_refused_request_is_a_failed_record(
    connect: Callable[..., ReplayClient],
    messages: list[Message],
    tokens: int,
    kind: type[Exception],
    prompt_tokens: int,
) -> None:
    answer = await ask(connect(), messages, tokens)
    assert type(answer.error) is kind
    assert answer.record.failed
    assert (answer.record.prompt_tokens, answer.record.output_tokens) == (prompt_tokens, 0)
    assert answer.record.end >= answer.record.arrival


async def test_a_full_queue_is_told_with_its_retry_time(connect: Callable[..., ReplayClient]) -> None:
    client = connect(queue=1, seqs=1, step_time=0.02)
    answers = await asyncio.gather(*(ask(client, HELLO, 5, f"r{i}") for i in range(6)))
    errors = [answer.error for answer in answers if answer.error is not None]
    assert errors
    assert all(isinstance(error, OverloadedError) and error.retry_after > 0 for error in errors)
    assert any(not answer.record.failed for answer in answers)


async def test_ids_are_taken_as_they_are_and_leaving_users_are_refused(connect: Callable[..., ReplayClient]) -> None:
    client = connect()
    reply = await client.send(Ask("r", "s", Prompt(ids=[5, 6, 7]), 2, Seconds(0.0)))
    assert (reply.record.prompt_tokens, reply.record.output_tokens) == (3, 2)
    for leaving in (
        Ask("a", "s", Prompt(ids=[5]), 2, Seconds(0.0), give_up=Seconds(1.0)),
        Ask("b", "s", Prompt(ids=[5]), 2, Seconds(0.0), patience=Seconds(1.0)),
    ):
        with pytest.raises(ValueError, match="wait to the end"):
            await client.send(leaving)


async def test_a_dead_engine_is_raised(connect: Callable[..., ReplayClient]) -> None:
    with pytest.raises(EngineDeadError):
        await ask(connect(fail_at=2), HELLO, 10)


async def test_an_abort_ends_the_request_with_what_it_has(connect: Callable[..., ReplayClient]) -> None:
    client = connect(step_time=0.01)
    running = asyncio.create_task(ask(client, HELLO, 50))
    await asyncio.sleep(0.1)
    client.abort("r")
    client.abort("unknown")
    answer = await running
    assert answer.error is None
    assert (answer.stopped, answer.left) == (True, False)
    assert answer.record.finish_reason is FinishReason.ABORT
    assert 0 < answer.record.output_tokens < 50

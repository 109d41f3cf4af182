"""The front as its clients see it: streams, refusals, aborts, death, and many of everything at once."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import EngineDeadError, EngineError, OverloadedError, PromptTooLongError, RequestError
from energyopt.core.records import FinishReason, RequestRecord, StepRecord
from energyopt.core.units import Bytes
from engine.batch import Batch, CacheShape, StepResult
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.output import Output
from engine.ports import ServingEngine
from engine.request import SamplingParams

Make = Callable[..., EngineFront]
TOKENIZER = FakeTokenizer()


class GatedRunner(FakeRunner):
    """Computes a step only when the test opens the gate."""

    def __init__(self, cache: CacheShape | None = None) -> None:
        super().__init__(cache)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def run(self, batch: Batch) -> StepResult:
        self.entered.release()
        assert self.gate.acquire(timeout=20)
        return super().run(batch)

    def open(self) -> None:
        for _ in range(10_000):
            self.gate.release()


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds fronts and closes them; afterwards no block may be in use and no engine thread left."""
    fronts: list[EngineFront] = []

    def build(
        runner: FakeRunner | None = None,
        *,
        max_num_seqs: int = 4,
        max_num_queued_reqs: int = 1000,
        max_model_len: int = 200,
        prefix_caching: bool = True,
        **hooks: Any,
    ) -> EngineFront:
        config = EngineConfig(
            model="fake",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=64,
            max_num_queued_reqs=max_num_queued_reqs,
            kv=KvConfig(prefix_caching=prefix_caching),
        )
        front = EngineFront(
            config, runner or FakeRunner(), TOKENIZER, max_model_len=max_model_len, clock=MonotonicClock(), **hooks
        )
        fronts.append(front)
        return front

    yield build
    for front in fronts:
        front.close()
        assert not front.alive
        assert not front._thread.is_alive()


def params(max_tokens: int = 5, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **options)


async def collect(stream: AsyncIterator[Output]) -> list[Output]:
    return [output async for output in stream]


async def ask(
    front: ServingEngine, text: str = "hello", max_tokens: int = 5, *, name: str = "r", **options: Any
) -> str:
    outputs = await collect(front.generate(TOKENIZER.encode(text), params(max_tokens, **options), request_id=name))
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is not None
    return "".join(output.text for output in outputs)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.001)


async def test_a_request_streams_its_tokens_and_ends_with_its_record(make: Make) -> None:
    steps: list[StepRecord] = []
    requests: list[RequestRecord] = []
    front = make(on_step=steps.append, on_request=requests.append)
    outputs = await collect(front.generate(TOKENIZER.encode("hello"), params(), request_id="a", session="s"))
    assert [len(output.token_ids) for output in outputs] == [1] * 5
    assert [output.record for output in outputs[:-1]] == [None] * 4
    record = outputs[-1].record
    assert record is not None
    assert requests == [record]
    assert (record.request_id, record.session) == ("a", "s")
    assert (record.prompt_tokens, record.output_tokens) == (5, 5)
    assert record.finish_reason is outputs[-1].finish_reason is FinishReason.LENGTH
    assert record.token_times == tuple(step.end for step in steps)
    assert record.arrival <= steps[0].start
    assert steps[0].devices == ("fake-0",)
    stats = front.stats()
    assert (stats.running, stats.waiting, stats.blocks_used, stats.steps) == (0, 0, 0, 5)
    assert stats.finished_by_reason == {"length": 1}


async def test_records_are_made_before_the_last_output_is_read(make: Make) -> None:
    made: list[str] = []
    front = make(on_request=lambda record: made.append(record.request_id))
    for number in range(20):
        await ask(front, name=str(number))
        assert made[-1] == str(number)


async def test_stop_strings_cut_the_text_and_end_the_request(make: Make) -> None:
    front = make(FakeRunner(say=TOKENIZER.encode("One. Two. STOP Three.")))
    outputs = await collect(front.generate([1], params(50, stop=("STOP", "xyz")), request_id="a"))
    assert "".join(output.text for output in outputs) == "One. Two. "
    assert outputs[-1].finish_reason is FinishReason.STOP
    record = outputs[-1].record
    assert record is not None
    assert record.output_tokens == len("One. Two. STOP")
    await until(lambda: front.stats().blocks_used == 0)
    assert front.stats().steps == len("One. Two. STOP")


async def test_text_held_for_a_stop_string_comes_at_the_end(make: Make) -> None:
    front = make(FakeRunner(say=TOKENIZER.encode("abSTO")))
    assert await ask(front, max_tokens=5, stop=("STOP",)) == "abSTO"
    assert front.stats().finished_by_reason == {"length": 1}


async def test_a_stop_string_in_the_last_allowed_token_is_a_stop(make: Make) -> None:
    front = make(FakeRunner(say=TOKENIZER.encode("abSTOP")))
    outputs = await collect(front.generate([1], params(6, stop=("STOP",)), request_id="a"))
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].record is not None
    assert outputs[-1].record.finish_reason is FinishReason.STOP
    assert front.stats().finished_by_reason == {"stop": 1}


async def test_a_token_that_ends_the_request_adds_no_text(make: Make) -> None:
    front = make(FakeRunner(say=TOKENIZER.encode("hi<|end|>there")))
    assert await ask(front, max_tokens=50, name="eos") == "hi"
    assert await ask(front, max_tokens=50, name="id", ignore_eos=True, stop_token_ids=(ord("r"),)) == "hithe"
    assert await ask(front, max_tokens=6, name="length", ignore_eos=True) == "hithe"


async def test_characters_arrive_whole(make: Make) -> None:
    text = "naïve 😀 café"
    front = make(FakeRunner(say=TOKENIZER.encode(text)))
    outputs = await collect(front.generate([1], params(len(text.encode())), request_id="a"))
    assert "".join(output.text for output in outputs) == text
    assert not any("\ufffd" in output.text for output in outputs)


async def test_logprobs_come_with_their_tokens(make: Make) -> None:
    front = make()
    outputs = await collect(front.generate([1], params(3, logprobs=2), request_id="a"))
    for output in outputs:
        (logprobs,) = output.logprobs
        assert len(logprobs.top) == 2
        assert logprobs.top[0] == (output.token_ids[0], logprobs.chosen)


async def test_the_cache_serves_the_next_turn(make: Make) -> None:
    front = make()
    await ask(front, "x" * 40, name="first")
    outputs = await collect(front.generate(TOKENIZER.encode("x" * 40 + "y"), params(), request_id="second"))
    record = outputs[-1].record
    assert record is not None
    assert record.cached_tokens == 32
    assert record.cached_by_tier == {"device": 32}
    assert front.stats().prompt_tokens_by_source == {"local_compute": 40 + 9, "device": 32}


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "kind"),
    [
        ([], 5, RequestError),
        ([1, 260], 5, RequestError),
        ([1] * 201, 5, PromptTooLongError),
        ([1] * 197, 5, PromptTooLongError),
    ],
)
async def test_refusals_leave_nothing_behind(make: Make, prompt: list[int], max_tokens: int, kind: type) -> None:
    front = make()
    with pytest.raises(kind):
        await collect(front.generate(prompt, params(max_tokens), request_id="a"))
    assert await ask(front, name="a")


async def test_an_id_in_use_is_refused_and_free_again_after_the_last_output(make: Make) -> None:
    runner = GatedRunner()
    front = make(runner)
    first = asyncio.create_task(ask(front, name="same"))
    await until(lambda: runner.entered.acquire(blocking=False))
    with pytest.raises(RequestError, match="'same' is in use"):
        await ask(front, name="same")
    runner.open()
    await first
    for _ in range(50):
        await ask(front, name="same")


async def test_abort_ends_the_stream_with_an_output(make: Make) -> None:
    runner = GatedRunner()
    front = make(runner)
    task = asyncio.create_task(collect(front.generate([1, 2], params(100), request_id="a")))
    await until(lambda: runner.entered.acquire(blocking=False))
    front.abort("a")
    front.abort("a")
    front.abort("unknown")
    runner.open()
    outputs = await task
    assert outputs[-1].finish_reason is FinishReason.ABORT
    assert outputs[-1].record is not None
    # The step that was computing may add its token; the one after it must not.
    assert outputs[-1].record.output_tokens <= 1
    assert front.stats().blocks_used == 0


async def test_an_abort_while_waiting_is_answered_too(make: Make) -> None:
    runner = GatedRunner()
    front = make(runner, max_num_seqs=1)
    tasks = [asyncio.create_task(collect(front.generate([1], params(3), request_id=str(n)))) for n in range(3)]
    await until(lambda: runner.entered.acquire(blocking=False))
    front.abort("2")
    runner.open()
    outputs = [await task for task in tasks]
    assert [one[-1].finish_reason for one in outputs] == [FinishReason.LENGTH, FinishReason.LENGTH, FinishReason.ABORT]
    assert outputs[2][-1].text == ""


async def test_closing_the_stream_early_aborts_within_a_step(make: Make) -> None:
    front = make(FakeRunner(step_time=0.002))
    stream = front.generate([1], params(150), request_id="a")
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    seen = front.stats().steps
    await until(lambda: front.stats().running == 0)
    assert front.stats().steps - seen <= 2
    assert front.stats().finished_by_reason == {"abort": 1}


async def test_dropping_the_stream_aborts_too(make: Make) -> None:
    front = make(FakeRunner(step_time=0.002))
    async for _ in front.generate([1], params(150), request_id="a"):
        break
    gc.collect()
    await until(lambda: front.stats().finished_by_reason == {"abort": 1})


async def test_cancelling_the_reader_aborts(make: Make) -> None:
    front = make(FakeRunner(step_time=0.002))
    task = asyncio.create_task(ask(front, max_tokens=150))
    await until(lambda: front.stats().running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: front.stats().finished_by_reason == {"abort": 1})


async def test_a_finished_stream_does_not_abort_the_next_of_its_name(make: Make) -> None:
    runner = GatedRunner()
    front = make(runner)
    finished = front.generate([1], params(1), request_id="same")
    runner.gate.release()
    async for output in finished:
        assert output.finish_reason is FinishReason.LENGTH
        break  # the last output was read, the generator stands before its end
    second = asyncio.create_task(collect(front.generate([2], params(3), request_id="same")))
    await until(lambda: front._intake._streams.get("same") is not None)
    await finished.aclose()  # type: ignore[attr-defined]
    runner.open()
    assert (await second)[-1].finish_reason is FinishReason.LENGTH


async def test_a_full_queue_refuses_with_an_estimate_and_recovers(make: Make) -> None:
    runner = GatedRunner()
    front = make(runner, max_num_seqs=2, max_num_queued_reqs=3)
    tasks = [asyncio.create_task(ask(front, name=str(number))) for number in range(5)]
    await until(lambda: len(front._intake._streams) == 5)
    with pytest.raises(OverloadedError, match="3 requests wait already") as caught:
        await ask(front, name="one too many")
    assert 0 < caught.value.retry_after <= 60
    runner.open()
    await asyncio.gather(*tasks)
    await ask(front, name="one too many")


async def test_free_seats_do_not_count_as_queue(make: Make) -> None:
    front = make(max_num_seqs=8, max_num_queued_reqs=1)
    await asyncio.gather(*(ask(front, name=str(number)) for number in range(8)))


async def test_a_failing_runner_ends_every_stream_with_its_cause(make: Make) -> None:
    front = make(FakeRunner(fail_at=3, step_time=0.001), max_num_seqs=2)
    results = await asyncio.gather(
        *(ask(front, max_tokens=50, name=str(number)) for number in range(6)), return_exceptions=True
    )
    for result in results:
        assert isinstance(result, EngineDeadError)
        assert "failed at step 3" in result.message
        assert isinstance(result.__cause__, EngineError)
    assert not front.alive
    with pytest.raises(EngineDeadError, match="failed at step 3"):
        await ask(front, name="later")


@pytest.mark.parametrize("hook", ["on_step", "on_request"])
async def test_a_failing_hook_is_loud(make: Make, hook: str) -> None:
    def fail(record: object) -> None:
        raise ValueError("no room for records")

    front = make(**{hook: fail})
    results = await asyncio.gather(*(ask(front, name=str(n)) for n in range(3)), return_exceptions=True)
    assert all(isinstance(result, EngineDeadError) for result in results)
    assert "ValueError: no room for records" in str(results[0])
    assert not front.alive


async def test_a_hook_that_fails_at_an_abort_is_loud_too(make: Make) -> None:
    def fail(record: object) -> None:
        raise ValueError("no")

    runner = GatedRunner()
    front = make(runner, on_request=fail)
    tasks = [asyncio.create_task(ask(front, name=name)) for name in "ab"]
    await until(lambda: runner.entered.acquire(blocking=False))
    front.abort("a")
    runner.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EngineDeadError) for result in results)


async def test_even_an_exit_in_the_engine_thread_reaches_the_clients(make: Make) -> None:
    def leave(record: object) -> None:
        raise SystemExit(3)

    front = make(on_step=leave)
    with pytest.raises(EngineDeadError, match="SystemExit"):
        await ask(front)


async def test_close_aborts_everything_and_frees_the_device(make: Make) -> None:
    runner = GatedRunner()
    front = make(runner, max_num_seqs=2)
    tasks = [asyncio.create_task(collect(front.generate([1], params(50), request_id=str(n)))) for n in range(5)]
    await until(lambda: len(front._intake._streams) == 5 and runner.entered.acquire(blocking=False))
    closing = asyncio.create_task(asyncio.to_thread(front.close))
    await until(lambda: not front.alive)
    with pytest.raises(EngineDeadError, match="closing"):
        await ask(front, name="too late")
    runner.open()
    await closing
    for task in tasks:
        assert (await task)[-1].finish_reason is FinishReason.ABORT
    assert runner.closed
    assert (front.stats().running, front.stats().waiting, front.stats().blocks_used) == (0, 0, 0)
    front.close()
    with pytest.raises(EngineDeadError, match="closed"):
        await ask(front, name="later")


async def test_close_from_a_hook_does_not_wait_for_itself(make: Make) -> None:
    fronts: list[EngineFront] = []
    front = make(on_step=lambda record: fronts[0].close())
    fronts.append(front)
    outputs = await collect(front.generate([1], params(50), request_id="a"))
    assert outputs[-1].finish_reason is FinishReason.ABORT


async def test_a_runner_that_never_returns_cannot_hang_the_clients(make: Make) -> None:
    runner = GatedRunner()
    front = make(runner)
    task = asyncio.create_task(ask(front))
    await until(lambda: runner.entered.acquire(blocking=False))
    with pytest.raises(EngineError, match=r"did not end within 0\.05 s"):
        await asyncio.to_thread(front.close, 0.05)
    with pytest.raises(EngineDeadError, match="still computes"):
        await task
    runner.open()  # and when it does return after all, the thread ends in good order


async def test_an_idle_engine_sleeps(make: Make) -> None:
    front = make()
    await ask(front)
    await until(lambda: front.stats().running == 0)
    before = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - before < 0.15


def test_clients_of_several_event_loops(make: Make) -> None:
    front = make(FakeRunner(step_time=0.0005))
    texts: dict[str, str] = {}

    def client(name: str) -> None:
        async def session() -> None:
            for number in range(10):
                texts[f"{name}-{number}"] = await ask(front, f"prompt {number}", name=f"{name}-{number}")

        asyncio.run(session())

    threads = [threading.Thread(target=client, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(texts) == 40
    assert all(texts[f"0-{number}"] == texts[f"{other}-{number}"] for other in range(4) for number in range(10))


def test_a_loop_that_is_gone_does_not_disturb_the_others(make: Make) -> None:
    front = make(FakeRunner(step_time=0.002))
    loop = asyncio.new_event_loop()
    stream = front.generate([1], params(150), request_id="orphan")
    loop.run_until_complete(stream.__anext__())
    loop.close()  # without a word to the engine
    assert asyncio.run(ask(front, name="other"))
    asyncio.run(until(lambda: front.stats().running == 0))
    assert front.stats().finished_by_reason == {"abort": 1, "length": 1}
    # The generator cannot be closed any more without its loop; the engine has long ended its request.
    del stream


async def test_hundreds_of_clients_that_come_and_go(make: Make) -> None:
    rng = random.Random(7)
    shape = CacheShape(num_blocks=28, block_tokens=4, bytes_per_block=Bytes(1))
    front = make(FakeRunner(shape, step_time=0.0002), max_num_seqs=8, max_num_queued_reqs=400)
    ended: list[FinishReason] = []

    async def client(number: int) -> None:
        prompt = TOKENIZER.encode("shared prefix " * rng.randint(0, 3) + f"and {number}")
        fate = rng.choice(["patient", "patient", "leaves", "aborts", "cancelled"])
        stream = front.generate(prompt, params(rng.randint(1, 30)), request_id=str(number))
        leave_after = rng.randint(0, 5)
        await asyncio.sleep(rng.random() * 0.3)
        async for output in stream:
            if output.finish_reason is not None:
                ended.append(output.finish_reason)
            if leave_after == 0 and fate == "leaves":
                await stream.aclose()  # type: ignore[attr-defined]
                return
            if leave_after == 0 and fate == "aborts":
                front.abort(str(number))
            if leave_after == 0 and fate == "cancelled":
                raise asyncio.CancelledError
            leave_after -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(client(number) for number in range(300)), return_exceptions=True)
    await until(lambda: sum(front.stats().finished_by_reason.values()) == 300)
    stats = front.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert stats.preemptions > 0
    assert stats.finished_by_reason["length"] >= ended.count(FinishReason.LENGTH) > 50
    assert sum(stats.prompt_tokens_by_source.values()) == stats.prompt_tokens
    front._service._scheduler.check_integrity()
    assert front._intake._streams == {}
    assert front._service._streams == {}


async def test_counters_only_grow(make: Make) -> None:
    shape = CacheShape(num_blocks=20, block_tokens=4, bytes_per_block=Bytes(1))
    front = make(FakeRunner(shape, step_time=0.0002))
    tasks = [asyncio.create_task(ask(front, "x" * 20, 30, name=str(number))) for number in range(10)]
    last = front.stats()
    while not all(task.done() for task in tasks):
        now = front.stats()
        if now.preemptions:
            front.abort("9")
            front.abort("5")
        for field in ("prompt_tokens", "output_tokens", "preemptions", "steps", "step_seconds"):
            assert getattr(now, field) >= getattr(last, field)
        for counts, before in (
            (now.finished_by_reason, last.finished_by_reason),
            (now.prompt_tokens_by_source, last.prompt_tokens_by_source),
        ):
            assert all(counts[key] >= value for key, value in before.items())
        assert sum(now.prompt_tokens_by_source.values()) == now.prompt_tokens
        last = now
        await asyncio.sleep(0)
    assert front.stats().preemptions > 0
    assert front.stats().finished_by_reason["abort"] > 0

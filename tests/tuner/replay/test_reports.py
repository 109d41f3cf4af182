"""Faults that benchmarks of others were reported for, one test each, against a server that provokes them.

The names say what went wrong elsewhere; the numbers are those of the collected list of reports.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import OverloadedError
from energyopt.core.records import FinishReason
from energyopt.core.results import summarize_latencies
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds
from tuner.replay.ask import Ask, Prompt, Reply
from tuner.replay.fake import Behaviour, FakeServer, behaving
from tuner.replay.figures import request_itl
from tuner.replay.http import Endpoint, HttpClient
from tuner.replay.page import parse_page
from tuner.replay.power import PowerSample, energy_of

ITL = 0.01


def ask(tokens: int = 8, patience: float | None = None) -> Ask:
    prompt = Prompt(messages=({"role": "user", "content": "one two three"},))
    return Ask("s/1", "s", prompt, tokens, Seconds(0.0), patience=None if patience is None else Seconds(patience))


async def reply_to(server: FakeServer, client: HttpClient, tokens: int = 8, **manners: object) -> Reply:
    behaving(server, **manners)
    return await client.send(ask(tokens))


async def test_01_token_ids_need_no_tokenizer(server: FakeServer, client: HttpClient) -> None:
    """A local tokenizer that does not load offline cannot stop a replay: lengths are exact without one."""
    reply = await client.send(Ask("s/1", "s", Prompt(ids=(40, 41, 42)), 4, Seconds(0.0)))
    assert (reply.record.prompt_tokens, reply.record.output_tokens) == (3, 4)
    assert server.bodies[0]["prompt"] == [40, 41, 42]


def test_02_a_page_may_say_more_later() -> None:
    first = parse_page('DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="G"} 300\n', Seconds(0))
    later = parse_page(
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="G"} 300\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="G"} 5000\n',
        Seconds(1),
    )
    assert first["G"][1].joules is None
    assert later["G"][1].joules == 5.0


async def test_03_several_tokens_in_the_first_chunk_do_not_make_it_faster(
    server: FakeServer, client: HttpClient
) -> None:
    plain = await reply_to(server, client, 9, itl=ITL)
    bundled = await reply_to(server, client, 9, itl=ITL, first_chunk_tokens=5, usage="every")
    assert bundled.first_chunk == 5
    itl, other = request_itl(plain), request_itl(bundled)
    assert itl is not None
    assert other is not None
    assert other > ITL * 0.9, "4 tokens took 4 steps; dividing by 8 would have said half"


async def test_04_reasoning_is_counted_by_the_server_and_once(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 8, reasoning_tokens=5)
    assert reply.record.output_tokens == 8
    assert (len(reply.reasoning.split()), len(reply.text.split())) == (5, 3)
    failed = await reply_to(server, client, 8, fail_after=4, usage="every")
    assert failed.record.prompt_tokens > 0, "a failed request keeps its input count where the server told it"


async def test_05_complete_rows_are_not_doubled(server: FakeServer, client: HttpClient, tmp_path: Path) -> None:
    """See also the readers' tests: rows of one session are deltas, complete prompts are not."""
    from tuner.replay.render import Calibration, ChatRenderer, Conversation
    from tuner.workload.trace import Call

    renderer, talk = ChatRenderer(None, calibration=Calibration()), Conversation("s", "")
    first: tuple[dict[str, object], ...] = ({"role": "user", "content": "a"},)
    more: tuple[dict[str, object], ...] = ({"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})
    whole = (*first, *more)
    renderer.prompt(talk, Call(None, 1, messages=first), "0.0")
    renderer.heard(talk, Call(None, 1), await reply_to(server, client))
    assert renderer.prompt(talk, Call(None, 1, messages=whole), "0.1").messages == whole


async def test_06_failures_are_counted_by_request(server: FakeServer, client: HttpClient) -> None:
    replies = [await reply_to(server, client, status=500), await reply_to(server, client, status=503, retry_after=7)]
    assert all(reply.record.finish_reason is FinishReason.ERROR for reply in replies)
    assert isinstance(replies[1].error, OverloadedError)
    assert replies[1].error.retry_after == 7.0


async def test_07_the_first_token_is_no_gap(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 5, ttft=0.1, itl=ITL)
    assert len(reply.record.gaps) == 4
    assert sum(reply.record.gaps) == pytest.approx(reply.record.e2e - (reply.record.ttft or 0))
    assert (reply.record.ttft or 0) >= 0.1


async def test_08_a_gap_belongs_to_a_token_and_not_to_a_chunk(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 12, itl=ITL, tokens_per_chunk=4, usage="every")
    assert len(reply.record.token_times) == 12
    assert len(reply.record.gaps) == 11
    assert "several_tokens_a_chunk" in reply.oddities
    assert not reply.spread, "the server said how many each chunk held"


async def test_09_tokens_held_back_by_a_parser_are_not_fast(server: FakeServer, client: HttpClient) -> None:
    """One token, then nineteen in one chunk: tokens count as told, and the time is that of all of them."""
    reply = await reply_to(server, client, 20, itl=ITL, hold=19, tool=True)
    assert reply.record.output_tokens == 20
    itl = request_itl(reply)
    assert itl is not None
    assert itl >= ITL * 0.9
    assert reply.spread, "how many each chunk held was not said, and the reply says so"


async def test_10_text_that_never_shows_is_no_first_token(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 6, silent=True)
    assert reply.error is None
    assert reply.record.output_tokens == 6
    assert reply.record.ttft is None
    assert "no_text" in reply.oddities
    assert Slo.parse("ttft:p90<1s").judge([reply.record]).violation is None, "a missing metric is never good"


async def test_11_a_short_answer_in_one_chunk_has_its_first_token_there(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 3, ttft=0.05, tokens_per_chunk=3)
    assert reply.record.ttft is not None
    assert 0.05 <= reply.record.ttft < 0.5
    one = await reply_to(server, client, 1, tokens_per_chunk=1)
    assert one.record.ttft is not None
    assert (request_itl(one), one.record.tpot, one.record.gaps) == (None, None, ())


async def test_12_output_length_is_what_the_server_says(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 64, reasoning_tokens=60, reasoning_field="reasoning")
    assert reply.record.output_tokens == 64
    assert reply.first_chunk == 1


async def test_13_chunks_are_not_tokens(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 55, itl=0.001, tokens_per_chunk=5, usage="last_content")
    assert reply.record.output_tokens == 55
    assert reply.spread


async def test_14_nothing_is_tokenized_again(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 40, spaces=True)
    assert reply.text == " " * 40
    assert reply.record.output_tokens == len(reply.record.token_times) == 40


async def test_15_a_role_chunk_does_not_stop_the_clock_and_reasoning_does(
    server: FakeServer, client: HttpClient
) -> None:
    reply = await reply_to(server, client, 8, role_chunk=True, empty_chunks=3, ttft=0.1, itl=0.1, reasoning_tokens=6)
    assert reply.record.ttft is not None
    assert 0.1 <= reply.record.ttft < 0.6, "not the role chunk at 1 ms, not the first content after reasoning"
    assert {"role_only", "empty_chunk"} <= set(reply.oddities)


def test_16_the_window_alone_is_integrated() -> None:
    """Idle before and after does not dilute the window."""
    samples = [PowerSample(Seconds(t), 720.0 if 10 <= t <= 20 else 100.0) for t in range(31)]
    reading = energy_of("G", samples, Seconds(10.5), Seconds(19.5)).reading
    assert reading is not None
    assert reading.joules == pytest.approx(9 * 720)


def test_17_slices_of_one_device_do_not_multiply_it() -> None:
    rows = "".join(
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="G",GPU_I_ID="{index}"}} 9000\n' for index in range(7)
    )
    found = parse_page(rows, Seconds(0))
    assert list(found) == ["G"]
    assert found["G"][1].joules == 9.0


def test_18_a_stale_baseline_is_no_edge() -> None:
    """The counter's last value before the window is 8.7 s old: no joules rather than 6 times too many."""
    samples = [PowerSample(Seconds(t), joules=100.0 * t) for t in (0.0, 8.7, 9.0, 9.3)]
    found = energy_of("G", samples, Seconds(8.75), Seconds(9.1))
    assert found.reading is not None
    assert found.reading.joules == pytest.approx(35.0)
    stale = energy_of(
        "G", [PowerSample(Seconds(t), joules=100.0 * t) for t in (0.0, 8.8, 9.3)], Seconds(8.7), Seconds(9)
    )
    assert stale.reading is None
    assert stale.faults[0].startswith("not_bracketed")


async def test_18_without_usage_there_are_no_token_figures(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 8, usage="none")
    assert not reply.counted
    assert "no_usage" in reply.oddities


async def test_usage_before_the_text_is_taken_for_what_it_says(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 8, usage="early")
    assert reply.record.output_tokens == 8
    assert "usage_early" in reply.oddities


async def test_an_error_in_the_stream_is_infinite_latency(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 8, fail_after=3)
    assert reply.error is not None
    assert "the engine broke" in str(reply.error)
    assert len(reply.record.token_times) == 3
    summaries = summarize_latencies([reply.record])
    assert all(math.isinf(summary.p90) for summary in summaries.values())


async def test_a_cut_stream_is_a_failure(server: FakeServer, client: HttpClient) -> None:
    assert (await reply_to(server, client, 8, cut_after=3)).error is not None
    behaving(server, cut_after=None)
    ended = await reply_to(server, client, 8, finish=False, done=False)
    assert "no finish_reason and no [DONE]" in str(ended.error)


async def test_another_object_is_noted_and_measured(server: FakeServer, client: HttpClient) -> None:
    reply = await reply_to(server, client, 4, object_name="chunk")
    assert reply.record.output_tokens == 4
    assert "wrong_object" in reply.oddities


async def test_a_shorter_answer_than_asked_is_noted(server: FakeServer, client: HttpClient) -> None:
    behaving(server, tokens=5)
    assert "other_length" in (await client.send(ask(8))).oddities


async def test_what_is_not_json_fails(server: FakeServer, client: HttpClient) -> None:
    assert "not JSON" in str((await reply_to(server, client, 8, not_json=True)).error)


async def test_a_user_without_patience_leaves_and_the_request_failed(server: FakeServer, client: HttpClient) -> None:
    behaving(server, ttft=5.0)
    reply = await client.send(ask(8, patience=0.05))
    assert "No token came within 0.05 s" in str(reply.error)
    assert reply.record.failed


async def test_nobody_at_home() -> None:
    async with HttpClient(Endpoint("http://127.0.0.1:9", "x"), MonotonicClock()) as lonely:
        assert "failed" in str((await lonely.send(ask())).error)


async def test_a_failed_connection_does_not_leak(server: FakeServer) -> None:
    server.behaviour = Behaviour(itl=0.01)
    async with HttpClient(Endpoint(server.url, "fake")) as opened:
        import asyncio

        running = asyncio.create_task(opened.send(ask(500)))
        await asyncio.sleep(0.2)
        opened.abort("s/1")
        reply = await running
    assert reply.record.finish_reason is FinishReason.ABORT
    assert 0 < reply.record.output_tokens < 500
    await asyncio.sleep(0.1)
    assert (server.active, server.cancelled) == (0, 1)

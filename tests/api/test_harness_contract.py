"""What load generators of others need from a server, field by field, against our own with a tiny real model.

AIPerf and InferenceX's aggregator read exactly these names; where one is spelled differently they report nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from energyopt.cli.main import build_app
from energyopt.compose.served import Served, serving

BLOCK = 64
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Served]:
    options = ("--meter", "none", "--block-size", str(BLOCK), "--kv-cache-memory-bytes", "64MiB", "--threads", "1")
    with serving(str(tiny_model), None, None, options) as running:
        yield running


def body(server: Served, **fields: object) -> dict[str, object]:
    """A request as AIPerf sends it."""
    return {
        "model": server.model,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "word " * 30}],
        "stream": True,
        "max_completion_tokens": 6,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def stream(server: Served, sent: dict[str, object], path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
    """The chunks of a stream whose frame is right."""
    headers = {"x-request-id": "r1", "x-correlation-id": "session-1", "x-session-affinity": "session-1"}
    reply = httpx.post(f"{server.url}{path}", json=sent, headers=headers, timeout=120)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_every_chunk_is_a_chat_completion_chunk(server: Served) -> None:
    chunks = stream(server, body(server))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all({"id", "created", "model", "choices"} <= set(chunk) for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == "length"


def test_the_last_chunk_has_usage_and_no_choices(server: Served) -> None:
    last = stream(server, body(server))[-1]
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    assert isinstance(usage["prompt_tokens_details"]["cached_tokens"], int)


def test_a_repeated_prompt_reports_cached_tokens_and_a_reset_forgets_them(server: Served) -> None:
    sent = body(server, messages=[{"role": "user", "content": "again and again " * 20}])
    cold, warm = (stream(server, sent)[-1]["usage"] for _ in range(2))
    cached = warm["prompt_tokens_details"]["cached_tokens"]
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    assert cached == (warm["prompt_tokens"] - 1) // BLOCK * BLOCK > 0
    assert httpx.post(f"{server.url}/reset_prefix_cache", timeout=30).status_code == 200
    assert stream(server, sent)[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_many_user_messages_in_a_row_are_taken(server: Served) -> None:
    messages = [{"role": "system", "content": "s"}, *({"role": "user", "content": f"part {n}"} for n in range(12))]
    assert stream(server, body(server, messages=messages))[-1]["usage"]["completion_tokens"] == 6


def test_the_older_name_of_the_length_works_too(server: Served) -> None:
    sent = body(server, max_tokens=3)
    del sent["max_completion_tokens"]
    assert stream(server, sent)[-1]["usage"]["completion_tokens"] == 3


def test_token_ids_are_a_prompt(server: Served) -> None:
    sent = {**body(server), "prompt": [40, 41, 42], "max_tokens": 4}
    del sent["messages"], sent["max_completion_tokens"]
    chunks = stream(server, sent, "/v1/completions")
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert chunks[-1]["usage"]["prompt_tokens"] == 3


def test_a_whole_reply_has_its_object_and_usage(server: Served) -> None:
    sent = body(server, stream=False)
    del sent["stream_options"]
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=sent, timeout=120).json()
    assert reply["object"] == "chat.completion"
    assert reply["usage"]["completion_tokens"] == 6


def test_the_models_are_listed(server: Served) -> None:
    listed = httpx.get(f"{server.url}/v1/models", timeout=30).json()
    assert listed["object"] == "list"
    assert server.model in [model["id"] for model in listed["data"]]


COUNTERS = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_by_source_total",
)


def test_counters_carry_total_in_their_type_line(server: Served) -> None:
    stream(server, body(server))
    page = httpx.get(f"{server.url}/metrics", timeout=30).text
    for name in COUNTERS:
        assert f"# TYPE {name} counter" in page, "with the bare name every hit rate is null elsewhere"
    assert "# TYPE vllm:kv_cache_usage_perc gauge" in page
    samples = {
        (sample.name, sample.labels.get("source")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    computed = samples["vllm:prompt_tokens_by_source_total", "local_compute"]
    cached = samples["vllm:prompt_tokens_by_source_total", "local_cache_hit"]
    assert samples["vllm:prefix_cache_queries_total", None] == computed + cached
    assert samples["vllm:prefix_cache_hits_total", None] == cached > 0


def test_an_unknown_model_and_a_broken_body_are_refused_with_a_message(server: Served) -> None:
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body(server, model="nobody"), timeout=30)
    assert reply.status_code == 404
    assert "nobody" in reply.json()["error"]["message"]
    assert httpx.post(f"{server.url}/v1/chat/completions", content=b"{", timeout=30).status_code == 400


def test_a_server_agrees_with_its_own_recording(server: Served, tmp_path: Path) -> None:
    few = ["--prompts", "2", "--tokens", "8", "--words", "40", "--db", str(tmp_path / "r.db")]
    kept = str(tmp_path / "baseline.json")
    for words in (["--save", kept], ["--baseline", kept, "--json"]):
        words = ["verify", server.url, *words, *few]
        done = CliRunner().invoke(build_app(words), words)
        assert done.exception is None, done.output
    report = json.loads(done.stdout)
    assert report["passed"]
    seen = {check["name"]: check for check in report["checks"]}
    assert seen["greedy tokens"]["score"] == 1.0
    assert seen["log-probabilities"]["score"] == pytest.approx(0.0, abs=1e-4)
    assert seen["JSON by schema"]["passed"] is None, "a random model writes no JSON, so this check decides nothing"


def test_client_server_and_trace_agree_on_cached_tokens(server: Served, tmp_path: Path) -> None:
    """Agentic sessions replayed one after the other: usage, the server's counters and the prediction are equal."""
    httpx.post(f"{server.url}/reset_prefix_cache", timeout=30)
    words = ["bench", server.url, "--workload", "agentic", "--scale", "128", "--sessions", "2", "--once", "--no-delays"]
    words += ["--concurrency", "1", "--endpoint", "completions", "--meter", "none", "--json"]
    words += ["--db", str(tmp_path / "r.db"), "--out", str(tmp_path / "runs")]
    done = CliRunner().invoke(build_app(words), words)
    assert done.exception is None, done.exception
    found = json.loads(done.stdout)
    prefixes = found["prefixes"]
    assert found["run"]["failed_requests"] == 0
    assert prefixes["cached_tokens"] == prefixes["expected_tokens"] > 0
    assert prefixes["sources"]["local_cache_hit"] == prefixes["cached_tokens"]
    assert sum(prefixes["sources"].values()) == prefixes["prompt_tokens"]

"""Chat through the official client against the real server: replies, streams, models."""

from __future__ import annotations

from typing import Any

import openai
import pytest

MODEL = "fake-model"
HELLO: Any = [{"role": "user", "content": "Hello"}]


def test_a_chat_reply(served: Any) -> None:
    with served.client() as client:
        reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8, temperature=0)
    choice = reply.choices[0]
    assert reply.object == "chat.completion"
    assert reply.model == MODEL
    assert choice.message.role == "assistant"
    assert len(choice.message.content) == 8
    assert choice.finish_reason == "length"
    prompt = len(served.services.tokenizer.encode("<|start|>user\nHello<|end|><|start|>assistant\n"))
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (prompt, 8)
    assert reply.usage.total_tokens == prompt + 8
    assert reply._request_id


def test_a_streamed_chat_is_the_whole_reply_in_parts(served: Any) -> None:
    with served.client() as client:
        whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, temperature=0)
        options: Any = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=20, **options))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    last = chunks[-1]
    assert last.choices == []
    assert last.usage.completion_tokens == 20
    assert last.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens // 16 * 16
    assert last.usage.to_dict()["energy_joules"] == 2.5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_without_stream_options_no_usage_is_streamed(served: Any) -> None:
    with served.client() as client:
        chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert served.services.energy.seen == []


def test_usage_on_every_chunk_counts_up(served: Any) -> None:
    options: Any = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True}
    with served.client() as client:
        chunks = list(client.completions.create(model=MODEL, prompt="abc", max_tokens=5, **options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] == 5


def test_a_chat_takes_the_rest_of_the_context_by_default(served: Any) -> None:
    with served.client() as client:
        reply = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert reply.usage.total_tokens == served.services.max_model_len


def test_several_choices_with_a_seed_differ_and_count_their_prompt_once(serve_it: Any) -> None:
    script_engine = serve_it()
    with script_engine.client() as client:
        reply = client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=4, seed=5)
        chunks = list(
            client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=4, seed=5, stream=True)
        )
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert reply.usage.completion_tokens == 12
    assert reply.usage.prompt_tokens < 60
    assert reply.usage.to_dict()["energy_joules"] == pytest.approx(7.5)
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in reply.choices]
    assert [chunk.choices[0].index for chunk in chunks[:3]] == [0, 1, 2]


def test_chat_logprobs(served: Any) -> None:
    with served.client() as client:
        reply = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
        )
        chunks = list(
            client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2, stream=True
            )
        )
    content = reply.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == reply.choices[0].message.content
    assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 2 for entry in content)
    assert content[0].bytes == list(content[0].token.encode())
    streamed = [e for chunk in chunks if chunk.choices[0].logprobs for e in chunk.choices[0].logprobs.content]
    assert streamed == content


def test_a_stop_string_ends_the_text_before_itself(serve_it: Any, engine_that_says: Any) -> None:
    with serve_it(engine=engine_that_says("one two three")).client() as client:
        reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=40, stop=["zzz", "two"])
        streamed = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=40, stop="two", stream=True)
        chunks = list(streamed)
    assert reply.choices[0].message.content == "one "
    assert reply.choices[0].finish_reason == "stop"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one "
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_the_async_client_streams_too(served: Any) -> None:
    async with served.async_client() as client:
        whole = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=6, temperature=0)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=6, temperature=0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content


def test_models(served: Any) -> None:
    with served.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL, "alias/of-it"]
        assert client.models.retrieve("alias/of-it").owned_by == "energyopt"
        with pytest.raises(openai.NotFoundError, match="does not exist") as caught:
            client.models.retrieve("other")
    assert caught.value.code == "model_not_found"

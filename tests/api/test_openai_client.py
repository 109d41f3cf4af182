"""The official client against the real server: what it parses, streams and raises."""

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
    assert choice.message.content is not None
    assert len(choice.message.content) == 8
    assert choice.finish_reason == "length"
    assert reply.usage is not None
    prompt = len(served.services.tokenizer.encode("<|start|>user\nHello<|end|><|start|>assistant\n"))
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (prompt, 8)
    assert reply.usage.total_tokens == prompt + 8


def test_a_streamed_chat_is_the_whole_reply_in_parts(served: Any) -> None:
    with served.client() as client:
        whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, temperature=0)
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=HELLO,
                max_completion_tokens=20,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 20
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.to_dict()["energy_joules"] == 2.5
    assert all(chunk.usage is None for chunk in chunks[:-1])

"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from engine.fake import FakeTokenizer

TOKENIZER = FakeTokenizer()


async def test_a_text_there_and_back(in_process: Any) -> None:
    text = "é<|start|>x"
    async with in_process() as http:
        made = (await http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
        back = (await http.post("/detokenize", json={"tokens": made["tokens"]})).json()
        plain = (await http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})).json()
    assert made["tokens"] == TOKENIZER.encode(text)
    assert (made["count"], made["max_model_len"]) == (len(made["tokens"]), 512)
    assert made["token_strs"][2:] == ["<|start|>", "x"]
    assert back == {"prompt": text}
    assert plain["tokens"] == list(text.encode())
    assert plain["token_strs"] is None


async def test_a_conversation_is_what_a_chat_would_compute(in_process: Any) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    async with in_process() as http:
        made = (await http.post("/tokenize", json={"messages": messages})).json()
        chat = (await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})).json()
        closed = (await http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False})).json()
    assert made["count"] == chat["usage"]["prompt_tokens"]
    assert TOKENIZER.decode(made["tokens"], skip_special=False).startswith("<|start|>user\nHello")
    assert closed["count"] < made["count"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x" * 40_000}, "prompt"),
        ("/tokenize", {"prompt": "x", "promt": "y"}, "promt"),
        ("/detokenize", {"tokens": [1, 260]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
async def test_refusals_name_the_field(in_process: Any, path: str, body: dict[str, object], param: str) -> None:
    async with in_process() as http:
        reply = await http.post(path, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


async def test_they_ask_for_the_key_and_the_model(in_process: Any) -> None:
    async with in_process(api_key="k") as http:
        assert (await http.post("/tokenize", json={"prompt": "x"})).status_code == 401
        headers = {"authorization": "Bearer k"}
        assert (await http.post("/tokenize", json={"prompt": "x", "model": "no"}, headers=headers)).status_code == 404
        assert (await http.post("/detokenize", json={"tokens": [], "model": "no"}, headers=headers)).status_code == 404


class Watched(FakeTokenizer):
    """Notes the threads that it works on."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = set[int]()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self.threads.add(threading.get_ident())
        return super().encode(text, special=special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        self.threads.add(threading.get_ident())
        return super().decode(ids, skip_special=skip_special)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_long_texts_stop_no_stream(in_process: Any, make_engine: Any, path: str) -> None:
    """Above some size the work is done on a thread; the loop's own thread does none of it."""
    tokenizer, engine = Watched(), make_engine(max_model_len=100_000)
    long = {"prompt": "x" * 20_000} if path == "/tokenize" else {"tokens": [97] * 20_000}
    async with in_process(engine=engine, tokenizer=tokenizer) as http:
        assert (await http.post(path, json=long)).status_code == 200
    assert tokenizer.threads
    assert threading.get_ident() not in tokenizer.threads

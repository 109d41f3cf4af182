"""A streamed answer lets go of what it holds, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from starlette.types import Message

from api.streamed import StreamedResponse

SCOPE = {"type": "http"}


class _Held:
    """A body of two pieces, of which the second breaks off if asked to, and the stack that is to be let go."""

    def __init__(self, error: Exception | None = None, *, endless: bool = False) -> None:
        self.log: list[str] = []
        self.sent: list[Message] = []
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()
        self.error, self.endless = error, endless
        self.owned = AsyncExitStack()
        self.owned.callback(self.log.append, "owned")

    async def body(self) -> AsyncGenerator[bytes]:
        try:
            yield b"one"
            if self.error is not None:
                raise self.error
            if self.endless:
                await asyncio.Event().wait()
            yield b"two"
        finally:
            self.log.append("body")

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.begun.set()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def run(self, headers: dict[str, str] | None = None) -> None:
        await StreamedResponse(self.body(), self.owned, 206, headers)(SCOPE, self.receive, self.send)


async def test_pieces_go_out_one_by_one_and_both_are_closed() -> None:
    held = _Held()
    await held.run()
    assert held.sent[0] == {"type": "http.response.start", "status": 206, "headers": []}
    assert [(one["body"], one["more_body"]) for one in held.sent[1:]] == [(b"one", True), (b"two", True), (b"", False)]
    assert held.log == ["body", "owned"]


async def test_a_length_that_is_known_is_said() -> None:
    held = _Held()
    await held.run({"Content-Length": "6"})
    assert held.sent[0]["headers"] == [(b"content-length", b"6")]


async def test_a_client_that_goes_away_frees_both() -> None:
    held = _Held(endless=True)
    task = asyncio.create_task(held.run())
    await held.begun.wait()
    held.gone.set()
    await task
    assert held.log == ["body", "owned"]


async def test_a_client_that_had_gone_before_the_first_piece_frees_what_is_owned() -> None:
    held = _Held(endless=True)
    held.gone.set()
    await held.run()
    assert held.log[-1:] == ["owned"]


async def test_an_error_breaks_the_answer_off() -> None:
    held = _Held(ValueError("lost"))
    with pytest.raises(ValueError, match="lost"):
        await held.run()
    assert held.sent[-1]["more_body"] is True
    assert held.log == ["body", "owned"]

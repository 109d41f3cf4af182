"""A small OpenAI-compatible server that misbehaves on request, for tests of clients and benchmarks.

It generates words on a timer, counts prompts itself (token ids as they are, texts by words) and answers from a prefix
cache without limits. Every oddity that real servers were reported for is a field of ``Behaviour``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

_MAX_BODY = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the server answers; the defaults are good manners.

    ``tokens`` overrides the length asked for; ``fail_after`` and ``cut_after`` tokens the stream ends with an error
    event or with the connection; ``status`` refuses every request. ``hold`` tokens are kept back and come in one chunk,
    as a tool parser does.
    """

    ttft: float = 0.0
    itl: float = 0.0
    role_chunk: bool = True
    empty_chunks: int = 0
    reasoning_tokens: int = 0
    reasoning_field: str = "reasoning_content"
    tokens_per_chunk: int = 1
    first_chunk_tokens: int | None = None
    hold: int = 0
    usage: Literal["final", "none", "early", "last_content", "every"] = "final"
    object_name: str | None = None
    done: bool = True
    finish: bool = True
    tokens: int | None = None
    silent: bool = False
    spaces: bool = False
    fail_after: int | None = None
    cut_after: int | None = None
    status: int | None = None
    retry_after: int | None = None
    not_json: bool = False
    tool: bool = False
    extra_prompt_tokens: int = 0


class PrefixMemory:
    """Counts how much of a prompt stands in whole blocks that were seen behind the same prefix; at least one is not."""

    def __init__(self, block: int) -> None:
        self._block, self._seen = block, set[int]()

    def cached(self, prompt: Sequence[object]) -> int:
        """Tokens found; the prompt's blocks are known from now on."""
        name, found, known = 0, 0, True
        for end in range(self._block, len(prompt) + 1, self._block):
            name = hash((name, tuple(prompt[end - self._block : end])))
            known = known and name in self._seen and end < len(prompt)
            found = end if known else found
            self._seen.add(name)
        return found


class FakeServer:
    """Serves until its context ends. ``behaviour`` may be replaced between requests; ``bodies`` are what was asked."""

    def __init__(self, behaviour: Behaviour | None = None, *, model: str = "fake", block: int = 16) -> None:
        self.behaviour = behaviour or Behaviour()
        self.model = model
        self.bodies: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = 0
        self.active = 0
        self.most_active = 0
        self.cached_tokens = 0
        self.prompt_tokens = 0
        self.pages: dict[str, str] = {}
        self._memory = PrefixMemory(block)
        self._connections: set[asyncio.Task[object]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[FakeServer]:
        """Listen on ``port`` (0: a free one) until the block ends."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=_MAX_BODY)
        self._port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            for task in tuple(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False ends the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        path = first.split(" ")[1]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(min(int(headers.get("content-length", "0")), _MAX_BODY))
        if path in self.pages:
            _whole(writer, 200, self.pages[path], "text/plain")
            return True
        if path == "/v1/models":
            _whole(writer, 200, json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]}))
            return True
        if not body:
            _whole(writer, 404, json.dumps({"error": {"message": f"no page {path}"}}))
            return True
        self.headers.append(headers)
        return await self._answer(path, json.loads(body), writer)

    async def _answer(self, path: str, body: dict[str, object], writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(body)
        behaviour = self.behaviour
        if behaviour.status is not None:
            extra = "" if behaviour.retry_after is None else f"retry-after: {behaviour.retry_after}\r\n"
            _whole(writer, behaviour.status, json.dumps({"error": {"message": "not today"}}), extra=extra)
            return True
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            return await self._stream(path, body, behaviour, writer)
        except (ConnectionError, asyncio.CancelledError):
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    async def _stream(
        self, path: str, body: Mapping[str, object], behaviour: Behaviour, writer: asyncio.StreamWriter
    ) -> bool:
        prompt = prompt_tokens(body) + ["pad"] * behaviour.extra_prompt_tokens
        cached = self._memory.cached(prompt)
        self.prompt_tokens += len(prompt)
        self.cached_tokens += cached
        answer = FakeAnswer(behaviour, chat=path.endswith("chat/completions"), model=self.model)
        answer.usage_of(len(prompt), cached, asked_tokens(body))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for wait, data in answer.events():
            if wait:
                await asyncio.sleep(wait)
            if writer.is_closing():
                raise ConnectionResetError
            if data is None:
                return False
            writer.write(b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def prompt_tokens(body: Mapping[str, object]) -> list[object]:
    """The fake's tokens: ids as they are; four for each message's frame and one a word for its text."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return list(prompt)
    if isinstance(prompt, str):
        return list(prompt.split())
    tokens: list[object] = []
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        tokens += ["<", message.get("role"), ">", "\n", *str(message.get("content") or "").split()]
    return tokens


def asked_tokens(body: Mapping[str, object]) -> int:
    value = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    return value if isinstance(value, int) else 16


class FakeAnswer:
    """The events of one answer: pairs of a wait in seconds and the data; None as data cuts the connection."""

    def __init__(self, behaviour: Behaviour, *, chat: bool, model: str) -> None:
        self._how, self._chat = behaviour, chat
        name = "chat.completion.chunk" if chat else "text_completion"
        self._head = {"id": "fake-1", "object": behaviour.object_name or name, "created": 0, "model": model}
        self._usage: dict[str, object] = {}
        self._count = 0

    def usage_of(self, prompt: int, cached: int, asked: int) -> None:
        self._count = asked if self._how.tokens is None else self._how.tokens
        self._usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}

    def events(self) -> Sequence[tuple[float, bytes | None]]:
        """All of them, in order."""
        how, events = self._how, list[tuple[float, bytes | None]]()
        if how.not_json:
            return [(how.ttft, b"{oops")]
        if self._chat and how.role_chunk:
            events.append((0.0, self._chunk({"role": "assistant", "content": ""})))
        events += [(0.0, self._chunk({"content": ""}))] * how.empty_chunks
        if how.usage == "early":
            events.append((0.0, self._event([], self._told(self._count))))
        sizes = chunk_sizes(how, self._count)
        made = 0
        for index, size in enumerate(sizes):
            made += size
            wait = how.ttft if index == 0 else how.itl * size
            if how.fail_after is not None and made > how.fail_after:
                return [*events, (wait, b'{"error": {"message": "the engine broke", "type": "server_error"}}')]
            if how.cut_after is not None and made > how.cut_after:
                return [*events, (wait, None)]
            events.append((wait, self._content(made, size, last=index == len(sizes) - 1)))
        return [*events, *self._ending()]

    def _ending(self) -> list[tuple[float, bytes | None]]:
        how, events = self._how, list[tuple[float, bytes | None]]()
        reason = ("tool_calls" if how.tool else "length") if how.finish else None
        if reason is not None:
            events.append((0.0, self._chunk({}, reason)))
        if how.usage in ("final", "every"):
            events.append((0.0, self._event([], self._told(self._count))))
        if how.done:
            events.append((0.0, b"[DONE]"))
        return events

    def _content(self, made: int, size: int, *, last: bool) -> bytes:
        how = self._how
        text = (" " if how.spaces else " word") * size
        part: dict[str, object] = {"content": text}
        if how.silent:
            part = {"content": ""}
        elif made <= how.reasoning_tokens:
            part = {how.reasoning_field: text}
        elif how.tool:
            part = {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": text}}]}
        told = how.usage == "every" or (how.usage == "last_content" and last)
        return self._chunk(part, usage=self._told(made) if told else None)

    def _chunk(
        self, part: Mapping[str, object], reason: str | None = None, usage: Mapping[str, object] | None = None
    ) -> bytes:
        content = {"delta": part} if self._chat else {"text": part.get("content", "")}
        return self._event([{"index": 0, **content, "finish_reason": reason}], usage)

    def _told(self, completion: int) -> Mapping[str, object]:
        return {**self._usage, "completion_tokens": completion}

    def _event(self, choices: Sequence[Mapping[str, object]], usage: Mapping[str, object] | None) -> bytes:
        tail = {} if usage is None else {"usage": usage}
        return json.dumps({**self._head, "choices": choices, **tail}).encode()


def chunk_sizes(how: Behaviour, count: int) -> list[int]:
    """How many tokens each chunk holds."""
    sizes: list[int] = []
    if how.first_chunk_tokens is not None and count:
        sizes.append(min(count, how.first_chunk_tokens))
    if how.hold:
        sizes += [1] * max(0, count - sum(sizes) - how.hold)
    while (left := count - sum(sizes)) > 0:
        sizes.append(left if how.hold else min(left, how.tokens_per_chunk))
    return sizes


def _whole(
    writer: asyncio.StreamWriter, status: int, text: str, kind: str = "application/json", extra: str = ""
) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    writer.write(head.encode() + body)


def behaving(server: FakeServer, **changes: object) -> None:
    """Change single manners of a running server."""
    server.behaviour = replace(server.behaviour, **changes)  # type: ignore[arg-type]  # field names, checked by replace

"""A client of any OpenAI-compatible server: streams answers and stamps every chunk as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import ConfigError, EnergyoptError, EngineError, OverloadedError, PromptTooLongError
from energyopt.core.units import Seconds

from .ask import Ask, Reply
from .reading import StreamReading
from .sse import SseParser

_MAX_ERROR_BYTES = 64 * 2**10
_TOO_LONG = ("context length", "maximum context", "context_length", "too long", "max_model_len", "longer than")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to ask. ``url`` ends before ``/v1``; ``extra`` is merged into every body.

    ``modern`` says max_completion_tokens for chats, as OpenAI does now; False the older max_tokens.
    """

    url: str
    model: str
    api_key: str | None = None
    ignore_eos: bool = True
    temperature: float | None = 0.0
    continuous_usage: bool = False
    modern: bool = True
    extra: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def base(cls, url: str) -> str:
        """``url`` without a trailing ``/v1``. Raises ConfigError for what is no http address."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not an address: expected http:// or https:// with host and port.")
        return url.rstrip("/").removesuffix("/v1").rstrip("/")


class HttpClient:
    """A ``ReplayClient`` over HTTP; an asynchronous context manager. Belongs to one event loop."""

    def __init__(self, endpoint: Endpoint, clock: Clock | None = None) -> None:
        self._endpoint, self._clock = endpoint, clock or MonotonicClock()
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._staying: dict[str, asyncio.Timeout] = {}
        self._aborted: set[str] = set()

    async def __aenter__(self) -> HttpClient:
        headers = {} if self._endpoint.api_key is None else {"authorization": f"Bearer {self._endpoint.api_key}"}
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            headers=headers,
        )
        self._session = await self._stack.enter_async_context(session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def send(self, ask: Ask) -> Reply:
        """Stream the answer to ``ask``. Never raises for what the server or the network does."""
        reading = StreamReading(ask, self._clock.now())
        staying = asyncio.timeout(ask.give_up)
        self._staying[ask.id] = staying
        try:
            async with staying:
                return await self._stream(ask, reading)
        except TimeoutError:
            end = reading.stop if ask.id in self._aborted else reading.leave
            return end(self._clock.now())
        except (aiohttp.ClientError, OSError) as error:
            words = str(error) or type(error).__name__
            return reading.fail(
                EngineError(f"The connection to {self._endpoint.url} failed: {words}."), self._clock.now()
            )
        except EnergyoptError as error:
            return reading.fail(error, self._clock.now())
        finally:
            self._staying.pop(ask.id, None)
            self._aborted.discard(ask.id)

    def abort(self, request_id: str) -> None:
        """Nobody waits for this request any more, which was no plan of its user."""
        staying = self._staying.get(request_id)
        if staying is not None and not staying.expired():
            self._aborted.add(request_id)
            staying.reschedule(asyncio.get_running_loop().time())

    async def _stream(self, ask: Ask, reading: StreamReading) -> Reply:
        if self._session is None:
            raise ValueError("the client is not open: use it in an async with block.")
        path, body = self.request_of(ask)
        headers = {
            "content-type": "application/json",
            "x-request-id": ask.id,
            "x-correlation-id": ask.session,
            "x-session-affinity": ask.session,
        }
        patience = asyncio.timeout(ask.patience)
        parser, clock = SseParser(), self._clock
        try:
            async with patience, self._session.post(self._endpoint.url + path, data=body, headers=headers) as response:
                if response.status != 200:
                    raise await _refusal(response)
                async for piece in response.content.iter_any():
                    at = clock.now()
                    for data in parser.feed(piece):
                        reading.event(data, at)
                    if reading.error is not None:
                        break
                    if reading.started:
                        patience.reschedule(None)
        except TimeoutError as error:
            if not patience.expired():
                raise EngineError(f"The server at {self._endpoint.url} takes no connection.") from error
            raise EngineError(f"No token came within {ask.patience:g} s, and the user left.") from error
        return reading.finish(clock.now())

    def request_of(self, ask: Ask) -> tuple[str, bytes]:
        """Path and body of an Ask."""
        endpoint, prompt = self._endpoint, ask.prompt
        options: dict[str, object] = {"include_usage": True}
        if endpoint.continuous_usage:
            options["continuous_usage_stats"] = True
        body: dict[str, object] = {"model": endpoint.model, "stream": True, "stream_options": options}
        if endpoint.ignore_eos:
            body["ignore_eos"] = True
        if endpoint.temperature is not None:
            body["temperature"] = endpoint.temperature
        if prompt.messages is not None:
            path, body["messages"] = "/v1/chat/completions", list(prompt.messages)
            body["max_completion_tokens" if endpoint.modern else "max_tokens"] = ask.output_tokens
        else:
            path, body["prompt"] = "/v1/completions", list(prompt.ids or ())
            body["max_tokens"] = ask.output_tokens
        return path, json.dumps({**body, **endpoint.extra}).encode()


async def _refusal(response: aiohttp.ClientResponse) -> EnergyoptError:
    """The error of a status other than 200: overload and over-long prompts by their own kinds."""
    text = (await response.content.read(_MAX_ERROR_BYTES)).decode(errors="replace")
    words = f"The server answered {response.status}: {_said(text)}."
    if response.status in (429, 503):
        return OverloadedError(words, retry_after=_retry_after(response.headers.get("retry-after", "")))
    if response.status in (400, 413, 422) and any(mark in text.lower() for mark in _TOO_LONG):
        return PromptTooLongError(words)
    return EngineError(words)


def _said(text: str) -> str:
    """The message of an error body, whatever its form."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return str(message or text or "no reason")[:300].strip().rstrip(".")


def _retry_after(value: str) -> Seconds:
    return Seconds(float(value)) if value.isascii() and value.isdigit() and len(value) < 5 else Seconds(1.0)

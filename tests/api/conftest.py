"""One served application per test that wants it: the real engine front over the fake runner, on a real socket."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai
import pytest

from api.app import create_app
from api.fake import FakeChat, FakeEnergy, FakeLedger, FakeMetrics, ScriptedEngine
from api.serve import Server, bind
from api.services import Services
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.records import FinishReason
from energyopt.core.units import Seconds
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.output import Output

MODEL = "fake-model"


def _engine(step_time: float = 0.0, *, max_model_len: int = 512, max_num_seqs: int = 8, **runner: Any) -> EngineFront:
    config = EngineConfig(model="fake", max_num_seqs=max_num_seqs, max_num_queued_reqs=16)
    fake = FakeRunner(step_time=step_time, **runner)
    return EngineFront(config, fake, FakeTokenizer(), max_model_len=max_model_len, clock=MonotonicClock())


@dataclass
class Served:
    """A server on a thread of its own."""

    services: Services
    url: str
    server: Server
    thread: threading.Thread
    http: httpx.Client
    chat: FakeChat = field(default_factory=FakeChat)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def make_engine() -> Callable[..., EngineFront]:
    """``make_engine(step_time, max_model_len=..., **options of FakeRunner)``."""
    return _engine


@pytest.fixture
def engine_that_says() -> Callable[[str], EngineFront]:
    """An engine whose every answer is one text, byte by byte, over and over."""
    return lambda text: _engine(say=list(text.encode()))


ServeIt = Callable[..., Served]


def _services(**changes: Any) -> Services:
    """A bundle around a fresh engine; ``changes`` replace fields."""
    base = Services(
        engine=changes.pop("engine", None) or _engine(),
        tokenizer=FakeTokenizer(),
        chat=FakeChat(),
        metrics=FakeMetrics(),
        model_names=(MODEL, "alias/of-it"),
        version="1.2.3",
        energy=FakeLedger(FakeEnergy(2.5, 0.25, "counter")),
        created=1_700_000_000,
    )
    return replace(base, **changes)


@pytest.fixture
def make_services() -> Callable[..., Services]:
    """``make_services(engine=..., energy=...)``: a bundle whose engine the test closes."""
    return _services


@pytest.fixture
def serve_it() -> Iterator[ServeIt]:
    """Serve a bundle on loopback: ``serve_it(engine=..., energy=...)``. All are stopped at the end."""
    with ExitStack() as stack:

        def start(grace: float = 5.0, on_stop: Callable[[], None] = lambda: None, **changes: Any) -> Served:
            services = _services(**changes)
            listener = bind("127.0.0.1", 0)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            ready = threading.Event()
            server = Server(
                create_app(services),
                grace=Seconds(grace),
                abort=services.engine.close,
                on_ready=ready.set,
                on_stop=on_stop,
            )
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            assert ready.wait(10)
            http = stack.enter_context(httpx.Client(base_url=url, timeout=20, trust_env=False))

            def stop() -> None:
                server.stop()
                thread.join(20)
                services.engine.close()
                assert not thread.is_alive()

            stack.callback(stop)
            assert isinstance(services.chat, FakeChat)
            return Served(services, url, server, thread, http, services.chat)

        yield start


@asynccontextmanager
async def _in_process(**changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    services = _services(**changes)
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client
    services.engine.close()


@pytest.fixture
def in_process() -> Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]:
    """A client that calls the application without a socket: ``async with in_process(engine=...) as http``."""
    return _in_process


@pytest.fixture
def scripted() -> ScriptedEngine:
    """An engine that says "ok" and keeps what it was asked."""
    return ScriptedEngine([Output("", "ok", (1,), finish_reason=FinishReason.STOP)])


@pytest.fixture
def served(serve_it: ServeIt) -> Served:
    """The default bundle, served."""
    return serve_it()

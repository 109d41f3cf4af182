"""What the HTTP service costs the processor per streamed token and per request: printed, and bounded loosely."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from pydantic import BaseModel

from api.app import create_app
from api.call import Call, Job
from api.fake import FakeChat, FakeMetrics, ScriptedEngine
from api.serve import Server, bind
from api.services import Services
from api.shape_chat import ChatShape
from energyopt.core.records import FinishReason
from energyopt.core.units import Seconds
from engine.fake import FakeTokenizer
from engine.output import Output
from engine.request import SamplingParams
from tests.bench.figures import Report

pytestmark = pytest.mark.bench
TOKENS = 200


def _show(figure: str) -> None:
    print(f"\n{figure}")  # noqa: T201 - a bench exists to print its figures


class _Delta(BaseModel):
    content: str


class _Choice(BaseModel):
    index: int
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None = None


class _Chunk(BaseModel):
    id: str
    object: str
    created: int
    model: str
    choices: list[_Choice]


def test_encoding_a_chunk_costs_less_than_a_validated_model(figure: Report) -> None:
    call = Call("chatcmpl-1", "m", (Job("r", [1], SamplingParams(), first=True),), None)
    shape, output, count = ChatShape(call, FakeTokenizer()), Output("r", " token", (5,)), 20_000

    def ours() -> bytes:
        return shape.chunk(0, output, None)

    def model() -> bytes:
        choice = _Choice(index=0, delta=_Delta(content=output.text))
        chunk = _Chunk(id=call.id, object="chat.completion.chunk", created=1, model="m", choices=[choice])
        return f"data: {chunk.model_dump_json()}\n\n".encode()

    seconds = {}
    for action in (ours, model):
        start = time.process_time()
        for _ in range(count):
            action()
        seconds[action.__name__] = (time.process_time() - start) / count
    _show(f"chunk: {seconds['ours'] * 1e6:.2f} us prepared, {seconds['model'] * 1e6:.2f} us as a validated model")
    figure("api: a chunk beside a validated model", seconds["model"] / seconds["ours"], "x", "over 1")
    assert seconds["ours"] < seconds["model"]


def test_a_streamed_token_costs_microseconds(figure: Report) -> None:
    outputs = [Output("", " token", (5,)) for _ in range(TOKENS - 1)]
    engine = ScriptedEngine([*outputs, Output("", ".", (6,), finish_reason=FinishReason.STOP)], max_model_len=4096)
    services = Services(engine, FakeTokenizer(), FakeChat(), FakeMetrics(), ("m",), "0")
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = Server(create_app(services), grace=Seconds(5), abort=engine.close, on_ready=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(10)
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100}
    url, seconds, count = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions", {}, 60
    with httpx.Client(trust_env=False) as http:
        for stream in (True, False):
            http.post(url, json={**body, "stream": stream})
            start = time.clock_gettime(clock)
            for _ in range(count):
                assert http.post(url, json={**body, "stream": stream}).status_code == 200
            seconds[stream] = (time.clock_gettime(clock) - start) / count
    server.stop()
    thread.join(10)
    per_token = (seconds[True] - seconds[False]) / TOKENS
    _show(f"server: {per_token * 1e6:.1f} us a streamed token, {seconds[False] * 1e6:.0f} us a whole reply of {TOKENS}")
    figure("api: a streamed token", per_token * 1e6, "us", "under 200")
    figure(f"api: a whole reply of {TOKENS} tokens", seconds[False] * 1e6, "us")
    assert per_token < 200e-6

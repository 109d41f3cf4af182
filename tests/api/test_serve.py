"""Binding before anything is loaded, and ending without cutting anybody off silently."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.serve import bind, serve
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

BODY = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


def test_a_port_in_use_is_named() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} on '127.0.0.1' is in use"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "word"),
    [
        ("127.0.0.1", 65536, "between 0 and 65535"),
        ("127.0.0.1", -1, "between 0 and 65535"),
        ("203.0.113.7", 0, "not an address of this machine"),
        ("no such host", 0, "cannot be resolved"),
        ("x" * 70, 0, "cannot be resolved"),
    ],
)
def test_what_cannot_be_bound_is_a_config_error(host: str, port: int, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        bind(host, port)


def test_a_bound_port_can_be_bound_again_after_it_is_closed() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        first.close()
    bind("127.0.0.1", port).close()


def test_a_running_request_may_finish_after_stop(serve_it: Any, make_engine: Any) -> None:
    served = serve_it(grace=10, engine=make_engine(0.02))
    with served.http.stream("POST", "/v1/chat/completions", json={**BODY, "max_tokens": 30}) as reply:
        lines = reply.iter_lines()
        next(lines)
        served.server.stop()
        rest = list(lines)
    assert "data: [DONE]" in rest
    served.thread.join(5)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/health", trust_env=False)


def test_a_request_that_outlives_the_grace_ends_with_an_error(serve_it: Any, make_engine: Any) -> None:
    served = serve_it(grace=0.2, engine=make_engine(0.02))
    with served.http.stream("POST", "/v1/chat/completions", json={**BODY, "max_tokens": 400}) as reply:
        lines = reply.iter_lines()
        next(lines)
        start = time.monotonic()
        served.server.stop()
        rest = [line for line in lines if line]
    assert rest[-2] == "event: error"
    assert "can be sent again" in rest[-1]
    assert time.monotonic() - start < 3
    assert not served.services.engine.alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_serve_and_leaves_the_process_alive(make_services: Any, number: signal.Signals) -> None:
    services, listener, ready = make_services(), bind("127.0.0.1", 0), threading.Event()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    found, statuses = signal.getsignal(number), list[int]()

    def visit() -> None:
        assert ready.wait(10)
        statuses.append(httpx.get(f"{url}/health", trust_env=False).status_code)
        os.kill(os.getpid(), number)

    visitor = threading.Thread(target=visit)
    visitor.start()
    serve(create_app(services), listener, grace=Seconds(5), abort=services.engine.close, on_ready=ready.set)
    visitor.join()
    assert statuses == [200]
    assert signal.getsignal(number) is found
    assert services.engine.alive
    services.engine.close()


def test_a_second_signal_skips_the_grace(make_services: Any, make_engine: Any) -> None:
    services, listener = make_services(engine=make_engine(0.02)), bind("127.0.0.1", 0)
    ready, cut = threading.Event(), threading.Event()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def interrupt_twice() -> None:
        body = {**BODY, "max_tokens": 400}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, trust_env=False) as reply:
            lines = reply.iter_lines()
            next(lines)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGTERM)
            list(lines)

    def visit() -> None:
        assert ready.wait(10)
        with pytest.raises(httpx.HTTPError):
            interrupt_twice()
        cut.set()

    visitor = threading.Thread(target=visit)
    visitor.start()
    start = time.monotonic()
    serve(create_app(services), listener, grace=Seconds(60), abort=services.engine.close, on_ready=ready.set)
    assert time.monotonic() - start < 5
    visitor.join(10)
    assert cut.is_set()
    services.engine.close()

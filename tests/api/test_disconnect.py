"""A client that goes away stops costing energy within a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from engine.intake import Intake
from engine.stream import Stream

BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400}


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    """Seconds until ``condition`` held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - start


@pytest.fixture
def slow(serve_it: Any, make_engine: Any) -> Any:
    """A server whose engine takes 20 ms a step: 8 s for a whole answer."""
    return serve_it(engine=make_engine(0.02))


@pytest.fixture(autouse=True)
def _nothing_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client may leave: that is no fault of ours."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"] == []


def idle(slow: Any) -> bool:
    stats = slow.services.engine.stats()
    return bool(stats.running == 0 and stats.waiting == 0 and stats.prompt_tokens > 0)


@pytest.mark.parametrize("n", [1, 3])
def test_closing_a_stream_aborts_its_requests(slow: Any, n: int) -> None:
    with slow.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True, "n": n}) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data: ")
        assert slow.services.engine.stats().running == n
    assert eventually(lambda: idle(slow)) < 2
    assert slow.services.engine.stats().finished_by_reason == {"abort": n}
    assert slow.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("n", [1, 3])
def test_giving_up_on_a_whole_reply_aborts_its_requests(slow: Any, n: int) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow.http.post("/v1/chat/completions", json={**BODY, "n": n}, timeout=0.3)
    assert eventually(lambda: idle(slow)) < 2
    assert slow.services.engine.stats().finished_by_reason == {"abort": n}


def test_giving_up_before_the_first_token_aborts_too(serve_it: Any, make_engine: Any) -> None:
    served = serve_it(engine=make_engine(lambda batch: 0.5))
    with pytest.raises(httpx.ReadTimeout):
        served.http.post("/v1/chat/completions", json={**BODY, "stream": True}, timeout=0.1)
    assert eventually(lambda: idle(served)) < 2
    assert served.services.engine.stats().output_tokens <= 2


class Gate:
    """What a step takes: as long as nobody lets it go on, from the second one on."""

    def __init__(self) -> None:
        self.steps = 0
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, batch: Any) -> float:
        self.steps += 1
        if self.steps > 1:
            self.begun.set()
            assert self.go_on.wait(20)
        return 0.0


def test_the_step_under_way_is_the_last_that_a_client_costs_who_left(
    serve_it: Any, make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, told = Gate(), threading.Event()
    served = serve_it(engine=make_engine(gate))
    leave = Intake.abort

    def noted(intake: Intake, stream: Stream) -> None:
        leave(intake, stream)
        told.set()

    monkeypatch.setattr(Intake, "abort", noted)
    with served.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as reply:
        assert next(reply.iter_lines()).startswith("data: ")
        assert gate.begun.wait(20)
    assert told.wait(20), "the engine is told while it computes"
    gate.go_on.set()
    eventually(lambda: idle(served), 20)
    assert gate.steps == 2
    assert served.services.engine.stats().finished_by_reason == {"abort": 1}

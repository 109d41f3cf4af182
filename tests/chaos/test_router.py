"""A router before two engines while one of them is killed, stopped, cut off or behind a bad cable."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.link import THERE, Link
from tests.chaos.load import Load
from tests.chaos.programs import Program
from tests.chaos.promises import it_answers_again, no_block_is_lost

Start = Callable[..., Program]
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def router(start: Start, *backends: Program) -> Program:
    words = [word for one in backends for word in ("--backend", one.url)]
    return start("router", *words, "--port").ready()


@pytest.fixture
def pair(serve: Start) -> Iterator[tuple[Program, Program]]:
    """Two engines that would give the same texts."""
    first, second = serve("--served-model-name", "tiny"), serve("--served-model-name", "tiny")
    yield first.ready(), second.ready()
    assert first.end() == 0
    assert second.end() == 0


def test_one_engine_dies_and_comes_back(start: Start, pair: tuple[Program, Program]) -> None:
    """Requests that had an answer begun end with it; all others get theirs from the other engine."""
    first, second = pair
    front = router(start, first, second)
    with Load(front.url).learn() as load:
        it_answers_again(load, front)
        for _ in range(2):
            first.kill()
            meanwhile = it_answers_again(load, front)
            assert meanwhile.unreachable == 0, "the router dropped a client"
            first.start().ready()
            it_answers_again(load, front)
    no_block_is_lost(second.url)
    assert front.end() == 0


def test_one_engine_stops_for_a_while(start: Start, pair: tuple[Program, Program]) -> None:
    first, second = pair
    front = router(start, first, second)
    with Load(front.url, clients=8).learn() as load:
        it_answers_again(load, front)
        first.send(signal.SIGSTOP)
        time.sleep(8.0)
        first.send(signal.SIGCONT)
        it_answers_again(load, front)
    no_block_is_lost(first.url)
    no_block_is_lost(second.url)
    assert front.end() == 0


def test_the_router_itself_dies_and_comes_back(start: Start, pair: tuple[Program, Program]) -> None:
    front = router(start, *pair)
    with Load(front.url).learn() as load:
        front.kill()
        time.sleep(0.5)
        front.start().ready()
        meanwhile = it_answers_again(load, front)
        assert meanwhile.unreachable > 0, "no client saw the kill: nothing was proven"
    for engine in pair:
        no_block_is_lost(engine.url)  # the engines noticed that their clients were gone
    assert front.end() == 0


@pytest.mark.parametrize("fault", ["loses packets", "cut"])
def test_the_cable_to_one_engine(start: Start, serve: Start, link: Link, tmp_path: Path, fault: str) -> None:
    """One engine is in another network, behind a cable that loses a tenth of the packets, or is cut for a while."""
    named = ("--served-model-name", "tiny")
    far = serve(*named, "--host", THERE, "--api-key", "k", before=link.before, host=THERE)
    near = serve(*named, "--api-key", "k")
    backends = [{"url": one.ready().url, "api_key": "k"} for one in (far, near)]
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"backends": backends}))
    front = start("router", "--config", str(config), "--port").ready()
    with Load(front.url, clients=8).learn() as load:
        it_answers_again(load, front)
        carried = link.passed
        link.loss = 0.1 if fault == "loses packets" else 1.0
        time.sleep(10.0)
        if fault == "cut":
            during = it_answers_again(load, front)
            assert during.same > 0, "the near engine did not take over"
        link.loss = 0.0
        it_answers_again(load, front)
        assert link.lost > 0
        assert carried > 0, "no packet crossed the cable: nothing was proven"
    no_block_is_lost(near.url)
    no_block_is_lost(far.url)
    assert front.end() == 0
    assert far.end() == 0
    assert near.end() == 0

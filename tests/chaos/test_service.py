"""The service, its worker and its database are killed in turn while studies run: what was finished stays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.faults import SmallDisk
from tests.chaos.programs import Program, within

Start = Callable[..., Program]
ENDED = {0, 130}
"""Exit codes of a worker that was told to end: 130 if it was at work."""
TERMINAL = {"succeeded", "no_feasible", "failed", "cancelled"}
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


class Service:
    """``energyopt api`` and a worker, each a program of its own, over one database."""

    def __init__(
        self,
        http: httpx.Client,
        start: Start,
        folder: Path,
        model: Path,
        db: str,
        *,
        conduct: bool = False,
        **environment: str,
    ) -> None:
        words = ("--db", db, "--out", str(folder / "reports"))
        how = {"environment": {**os.environ, **environment}}
        self.model, self._http = str(model), http
        root = ("--model-root", str(model.parent), "--workers", "0")
        self.api = start("api", *words, *root, "--port", **how).ready()
        self.worker = start("worker", *words, *(("--conduct",) if conduct else ()), **how)

    def post(self, trials: int = 4) -> str:
        """A study of short trials; its id."""
        body = {
            "model": self.model,
            "slos": ["ttft:p90<30s"],
            "quick": True,
            "trials": trials,
            "window": 2.0,
            "pairs": 1,
            "concurrency": 2,
            "meter": "estimated",
        }
        reply = self._http.post(f"{self.api.url}/v1/studies", json=body)
        assert reply.status_code == 202, reply.text
        return str(reply.json()["id"])

    def study(self, name: str) -> dict[str, Any]:
        return self._get(f"/v1/studies/{name}")

    def finished(self, name: str) -> dict[int, Any]:
        """The lines of the trials that are done, by number."""
        items = self._get(f"/v1/studies/{name}/trials")["items"]
        return {item["number"]: item for item in items if item["state"] == "done"}

    def until_finished(self, name: str, count: int, seconds: float = 200.0) -> dict[int, Any]:
        for _ in within(seconds, 0.5):
            done = self.finished(name)
            if len(done) >= count or self.study(name)["state"] in TERMINAL:
                return done
        raise AssertionError(f"{self.study(name)}, {self.worker.said[-2000:]}")

    def until_over(self, name: str) -> dict[str, Any]:
        for _ in within(280.0, 0.5):
            found = self.study(name)
            if found["state"] in TERMINAL:
                return found
        raise AssertionError(f"{self.study(name)}, {self.worker.said[-2000:]}")

    def caps(self) -> list[Any]:
        """Leases on limits of devices."""
        return list(self._get("/v1/caps")["items"])

    def _get(self, path: str) -> dict[str, Any]:
        for _ in within(60.0, 0.5):  # the database may be away
            try:
                reply = self._http.get(self.api.url + path)
            except httpx.TransportError:
                continue
            if reply.status_code == 200:
                return dict(reply.json())
            assert reply.status_code == 503, reply.text
            assert reply.json()["title"]
        raise AssertionError(f"{path} did not answer, {self.api.said[-2000:]}")


Make = Callable[..., Service]


@pytest.fixture
def make(start: Start, tmp_path: Path, tiny_model: Path) -> Iterator[Callable[..., Service]]:
    """Starts a service over a database."""
    with httpx.Client(timeout=30) as http:
        yield partial(Service, http, start, tmp_path, tiny_model)


def same(before: dict[int, Any], after: dict[int, Any]) -> None:
    """What was finished is there still, unchanged."""
    assert before, "nothing was finished: nothing was proven"
    assert {number: after.get(number) for number in before} == before


def test_each_in_turn_is_killed(make: Make, own_postgres: Any) -> None:
    service = make(own_postgres.url)
    study = service.post()
    first = service.until_finished(study, 1)
    service.worker.kill()
    service.worker.start()
    second = service.until_finished(study, 2)
    same(first, second)
    service.api.kill()
    service.api.start().ready()
    own_postgres.kill()
    time.sleep(3.0)
    own_postgres.start()
    third = service.finished(study)
    same(second, third)
    over = service.until_over(study)
    assert over["state"] == "succeeded", over
    same(third, service.finished(study))
    assert service.api.end() == 0
    assert service.worker.end() in ENDED
    assert children_of(service.worker) == []


def test_its_disk_is_full_for_a_while(make: Make, small_disk: SmallDisk) -> None:
    """A trial that cannot be written is not lost silently: it is told, retried or measured again."""
    service = make(f"sqlite:///{small_disk.folder}/e.db")
    study = service.post()
    first = service.until_finished(study, 1)
    small_disk.fill()
    time.sleep(15.0)
    small_disk.empty()
    if not service.worker.alive:
        service.worker.start()
    over = service.until_over(study)
    assert over["state"] == "succeeded", (over, service.worker.said[-2000:])
    same(first, service.finished(study))
    assert service.api.end() == 0
    assert service.worker.end() in ENDED


def test_its_worker_stops_longer_than_its_lease(make: Make, start: Start, tmp_path: Path) -> None:
    """Another takes over; what the first says when it wakes is not taken."""
    service = make(f"sqlite:///{tmp_path}/e.db")
    study = service.post()
    first = service.until_finished(study, 1)
    service.worker.send(signal.SIGSTOP)
    other = start(*service.worker.words, "--slot", "1")
    second = service.until_finished(study, 2, 280.0)
    same(first, second)
    service.worker.send(signal.SIGCONT)
    over = service.until_over(study)
    assert over["state"] == "succeeded", (over, service.worker.said[-2000:], other.said[-2000:])
    same(second, service.finished(study))
    assert service.api.end() == 0
    assert {service.worker.end(), other.end()} <= ENDED


def test_its_worker_over_http_is_killed(make: Make, start: Start, tmp_path: Path) -> None:
    """Two work without the database; the one at work is killed, and the other goes on with what it had taken."""
    service = make(f"sqlite:///{tmp_path}/e.db", conduct=True)
    words = ("worker", "--api", service.api.url, "--out", str(tmp_path / "remote"))
    how = {"environment": {**os.environ, "ENERGYOPT_OUT": str(tmp_path / "remote")}}
    killed = start(*words, **how)
    study = service.post()
    first = service.until_finished(study, 1)
    assert service.study(study)["state"] not in TERMINAL, "the worker must be at work when it is killed"
    killed.kill()
    other = start(*words, "--slot", "1", **how)
    over = service.until_over(study)
    assert over["state"] == "succeeded", (over, service.worker.said[-2000:], other.said[-2000:])
    same(first, service.finished(study))
    assert len(service.finished(study)) > len(first), "nobody went on"
    assert service.caps() == []
    assert other.end() in ENDED
    assert service.api.end() == 0
    assert service.worker.end() in ENDED
    assert children_of(other) == children_of(service.worker) == []


def children_of(program: Program) -> list[int]:
    """Processes that a program left behind."""
    mine = []
    for folder in Path("/proc").iterdir():
        try:
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(status[1]) == program.process.pid:
            mine.append(int(folder.name))
    return mine

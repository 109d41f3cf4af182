"""Clients that ask while things break: whatever they are told must be the right text or an error that says so."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Self

import httpx

PROMPTS = tuple(f"{'You are a careful assistant. ' * 6}Case {n}: {'what happened then? ' * (n + 1)}" for n in range(6))
LONGEST = 60.0
"""Seconds after which a request counts as hanging."""


@dataclass
class Tally:
    """How requests ended. ``wrong`` holds what no client may ever see."""

    same: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    unreachable: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0

    @property
    def ended(self) -> int:
        return self.same + sum(self.refused.values()) + self.unreachable + len(self.wrong)


class Load:
    """``clients`` threads that ask the same prompts again and again, greedily."""

    def __init__(self, url: str, clients: int = 4, *, key: str | None = None) -> None:
        self._url, self._clients = url, clients
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._known: dict[str, str] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._threads: list[threading.Thread] = []
        self.tally = Tally()

    def learn(self) -> Self:
        """Ask each prompt once, one at a time: the texts that every later answer must equal."""
        with httpx.Client(timeout=LONGEST) as client:
            self._body = {"model": self._model(client), "max_tokens": 12, "temperature": 0}
            for prompt in PROMPTS:
                reply = self._ask(client, prompt)
                assert reply.status_code == 200, reply.text
                self._known[prompt] = reply.json()["choices"][0]["text"]
        return self

    def _model(self, client: httpx.Client) -> str:
        """The first model; a router knows its backends' a moment after it has started."""
        for _ in range(100):
            found = client.get(f"{self._url}/v1/models", headers=self._headers).json()["data"]
            if found:
                return str(found[0]["id"])
            time.sleep(0.2)
        raise AssertionError("no model is served")

    def __enter__(self) -> Self:
        assert self._known, "learn the right texts first"
        self._over.clear()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(self._clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LONGEST + 10)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"

    def fresh(self) -> Tally:
        """What happened until now; counting begins anew."""
        with self._lock:
            found, self.tally = self.tally, Tally()
        return found

    def _run(self, number: int) -> None:
        with httpx.Client(timeout=LONGEST) as client:
            turn = number
            while not self._over.wait(0.02):
                self._once(client, PROMPTS[turn % len(PROMPTS)])
                turn += 1

    def _once(self, client: httpx.Client, prompt: str) -> None:
        began = time.monotonic()
        try:
            reply: httpx.Response | None = self._ask(client, prompt)
        except httpx.ReadTimeout:
            self._over.set()
            with self._lock:
                self.tally.wrong.append(f"no end within {LONGEST:.0f} s: {prompt[-20:]!r}")
            return
        except httpx.TransportError:
            reply = None
        with self._lock:
            self._count(prompt, reply)
            self.tally.slowest = max(self.tally.slowest, time.monotonic() - began)

    def _count(self, prompt: str, reply: httpx.Response | None) -> None:
        tally = self.tally
        if reply is None:
            tally.unreachable += 1
        elif reply.status_code == 200 and reply.json()["choices"][0]["text"] == self._known[prompt]:
            tally.same += 1
        elif reply.status_code in (500, 502, 503, 504) and reply.json()["error"]["message"]:
            tally.refused[reply.status_code] = tally.refused.get(reply.status_code, 0) + 1
        else:
            tally.wrong.append(f"{reply.status_code}: {reply.text[:300]}")

    def _ask(self, client: httpx.Client, prompt: str) -> httpx.Response:
        body = {**self._body, "prompt": prompt}
        return client.post(f"{self._url}/v1/completions", json=body, headers=self._headers)

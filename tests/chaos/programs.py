"""Whole programs as a system's supervisor sees them: started, watched, hurt, started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

PROGRAM = "import sys; from energyopt.cli.main import main; sys.argv[0] = 'energyopt'; main()"
START = 120.0
"""Seconds that a program may take to answer: these tests share their machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds now: resident bytes, open descriptors, threads."""

    resident: int
    descriptors: int
    threads: int


class Program:
    """``energyopt WORDS`` in ``folder``, its words kept in a file; ``before`` is put in front of the command."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        url: str = "",
    ) -> None:
        self.words, self.url = words, url
        self._command = [*before, sys.executable, "-P", "-c", PROGRAM, *words]
        self._environment = dict(os.environ if environment is None else environment)
        self._folder, self._log = folder, folder / f"{words[0]}-{id(self)}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the program was not started"
        return self._process

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Program:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        return self

    def ready(self, path: str = "/health", seconds: float = START) -> Program:
        """Wait until it answers; a program that ends meanwhile fails the test with its last words."""
        for _ in within(seconds):
            assert self.alive, self.said[-2000:]
            try:
                if httpx.get(self.url + path, timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
        raise AssertionError(f"{self.words[0]} does not answer: {self.said[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def end(self, seconds: float = 60.0) -> int:
        """Asked to end; what does not is killed and fails the test."""
        if self.alive:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.words[0]} did not end: {self.said[-2000:]}") from None

    def usage(self) -> Usage:
        folder = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return Usage(
            int(status["VmRSS"].split()[0]) * 1024, len(list((folder / "fd").iterdir())), int(status["Threads"])
        )

    def document(self) -> dict[str, str]:
        """The first JSON document that it printed."""
        for _ in within(START):
            assert self.alive, self.said[-2000:]
            text = self.said
            if "\n}\n" in text:
                first = text.index("{")
                return dict(json.JSONDecoder().raw_decode(text[first:])[0])
        raise AssertionError(f"{self.words[0]} said nothing: {self.said[-2000:]}")


def within(seconds: float, pause: float = 0.1) -> Iterator[float]:
    """Moments to try again at, until ``seconds`` are over: ``for _ in within(5): ...``."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        yield now
        time.sleep(pause)

"""A server for a benchmark: one that runs already, or ours, started for the occasion and ended after it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from energyopt.core.errors import LaunchError
from tuner.replay.http import Endpoint

_READY = re.compile(r"serving on (http://\S+)/v1")
_START_SECONDS = 180.0
_END_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers: ``url`` ends before ``/v1``."""

    url: str
    model: str
    pid: int | None = None


@contextmanager
def serving(target: str, model: str | None, api_key: str | None, options: Sequence[str] = ()) -> Iterator[Served]:
    """``target`` is an http address, or a model to serve with ``options`` of ``energyopt serve``.

    Raises ConfigError for a bad address, LaunchError if nothing answers there or our server does not start.
    """
    if "://" in target:
        url = Endpoint.base(target)
        yield Served(url, model or first_model(url, api_key))
        return
    with _terminated_as_exit(), _child(target, options) as child:
        url = _address(child)
        yield Served(url, model or first_model(url, api_key), child.pid)


@contextmanager
def _child(target: str, options: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Our server in a process of its own, ended however the block ends."""
    program = "from energyopt.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", program, "serve", target, "--port", "0", *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()


@contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """SIGTERM ends us through our ``finally`` clauses, so that the server does not outlive us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _address(child: subprocess.Popen[str]) -> str:
    """Wait until the server says where it is; its later words are read and dropped."""
    words: deque[str] = deque(maxlen=5)
    found: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        for line in child.stderr or ():
            words.append(line.strip())
            match = _READY.search(line)
            if match is not None and not found:
                found.append(match.group(1))
                ready.set()
        ready.set()

    threading.Thread(target=listen, name="server-log", daemon=True).start()
    ready.wait(_START_SECONDS)
    if not found:
        said = " ".join(word for word in words if word) or "nothing"
        raise LaunchError(f"The server did not start within {_START_SECONDS:g} s; it said: {said}")
    return found[0]


def first_model(url: str, api_key: str | None) -> str:
    """The first model that a server names. Raises LaunchError if it names none."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        response = httpx.get(f"{url}/v1/models", headers=headers, timeout=10.0)
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        raise LaunchError(
            f"{url}/v1/models names no model ({error}); is a server there? Or name it: --model."
        ) from error

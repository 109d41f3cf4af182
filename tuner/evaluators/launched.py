"""vLLM and SGLang as Evaluators: a trial starts the engine with a command we build, measures it and ends it whole."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, CrashError, LaunchError, OutOfMemoryError, TrialError, TrialTimeoutError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload

from ..export.command import LaunchCommand, vllm_command
from ..export.sglang import PROGRAM as SGLANG
from ..export.sglang import sglang_command
from ..ports import Progress, ProgressSink
from ..replay.http import Endpoint
from .chat_http import MeterOf, measure_server
from .oom import KernelKills
from .server import ServerProcess, await_freed, free_port

_MEMORY = re.compile(
    rb"out of memory|cannot allocate memory|\bbad_alloc\b|\bMemoryError\b|No available memory for the cache blocks|"
    rb"larger than the (?:maximum number of tokens|available KV cache)|Not enough memory",
    re.IGNORECASE,
)
_BUSY = re.compile(rb"address already in use|EADDRINUSE|port \d+ is (?:already )?in use", re.IGNORECASE)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[\w.+-]*")
_EXCEPTION = re.compile(r"(?:^|\] )\s*((?:\w+\.)*\w*(?:Error|Exception): .+)")
_LAST_WORDS = 300
_PORTS = 3
"""How many ports are tried where somebody else was quicker."""
_POLL = 0.25


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between external engines: the command, and where a running one says its version.

    ``told`` are flags with which an answer's usage tells the tokens that the cache spared: without them hits are
    unknown, and off is the default of both.
    """

    name: str
    program: tuple[str, ...]
    command: Callable[[Deployment], LaunchCommand]
    version_path: str
    told: tuple[str, ...]

    def argv(self, deployment: Deployment, program: Sequence[str], arguments: Sequence[str], port: int) -> list[str]:
        """The whole command line. Raises ConfigError for what the engine cannot be asked to run."""
        words = self.command(deployment).argv[len(self.program) :]
        where = ("--host", "127.0.0.1", "--port", str(port))
        return [*(program or self.program), *words, *self.told, *where, *arguments]


VLLM = Dialect("vllm", ("vllm", "serve"), vllm_command, "/version", ("--enable-prompt-tokens-details",))
SGLANG_DIALECT = Dialect("sglang", SGLANG, sglang_command, "/get_server_info", ("--enable-cache-report",))
DIALECTS: Mapping[str, Dialect] = {"vllm": VLLM, "sglang": SGLANG_DIALECT}


@dataclass(frozen=True, slots=True)
class Launch:
    """How the engine is started on this machine. ``program`` empty takes the dialect's own name.

    ``free_memory`` says how many bytes are left by place, the host and each device that tells: after a trial they have
    to come back before the next one starts.
    """

    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    free_memory: Callable[[], Mapping[str, int]] = dict
    log_dir: Path | None = None
    grace: Seconds = Seconds(10.0)  # noqa: RUF009  # a float by another name


class LaunchedEvaluator:
    """``version`` is what the last engine that answered said of itself, None before, or where it says nothing."""

    def __init__(self, dialect: Dialect, launch: Launch, meter_of: MeterOf, clock: Clock | None = None) -> None:
        self._dialect, self._launch, self._meter_of = dialect, launch, meter_of
        self._clock = clock or MonotonicClock()
        self.version: str | None = None

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        """One trial: launch, a real completion, load, window, end. Raises TrialError and its kinds.

        A port that somebody else took meanwhile says nothing about the configuration: another one is tried.
        """
        for attempt in range(1, _PORTS + 1):
            try:
                return self._run(deployment, workload, plan, slos, progress)
            except _PortTakenError as error:
                if attempt == _PORTS:
                    raise LaunchError(f"No port could be had in {_PORTS} attempts: {error}") from error
        raise ValueError("there is at least one attempt.")

    def _run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        progress(Progress("launching", 0.0))
        port = free_port()
        try:
            argv = self._dialect.argv(deployment, self._launch.program, self._launch.arguments, port)
        except ConfigError as error:
            raise LaunchError(error.message) from error
        before, kills = self._launch.free_memory(), KernelKills()
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + plan.timeout
        server = ServerProcess(argv, self._launch.environment, grace=self._launch.grace)
        try:
            with server:
                model = self._await_ready(server, kills, url, until, plan.timeout, progress)
                left = plan.model_copy(update={"timeout": Seconds(max(1.0, until - time.monotonic()))})
                endpoint, metered = Endpoint(url, model, modern=False), self._meter_of(deployment)
                watch = partial(_check, server, kills)
                return asyncio.run(
                    measure_server(endpoint, workload, left, slos, metered, self._clock, progress, watch)
                )
        finally:
            self._keep_log(deployment, server, freed=await_freed(self._launch.free_memory, before))

    def _await_ready(
        self,
        server: ServerProcess,
        kills: KernelKills,
        url: str,
        until: float,
        timeout: float,
        progress: ProgressSink,
    ) -> str:
        """Wait for a real completion; returns the model's name. Raises what ``_check`` raises, TrialTimeoutError."""
        with httpx.Client(base_url=url, timeout=10.0) as client:
            while time.monotonic() < until:
                _check(server, kills)
                progress(Progress("launching", 1 - max(0.0, until - time.monotonic()) / timeout))
                model = _served_model(client)
                if model is not None and _completes(client, model):
                    self.version = _version(client, self._dialect.version_path)
                    return model
                time.sleep(_POLL)
        raise TrialTimeoutError(f"{self._dialect.name} did not answer within {timeout:g} s.{_words(server)}")

    def _keep_log(self, deployment: Deployment, server: ServerProcess, *, freed: bool) -> None:
        if self._launch.log_dir is None:
            return
        self._launch.log_dir.mkdir(parents=True, exist_ok=True)
        note = b"" if freed else b"\n[energyopt] its memory was not free again in time\n"
        name = f"trial-{deployment.digest()}-{server.pid}.log"
        (self._launch.log_dir / name).write_bytes(server.tail + note)


class _PortTakenError(LaunchError):
    """Somebody else has the port now."""


def _check(server: ServerProcess, kills: KernelKills) -> None:
    """Raises what the death of the engine means: memory if there is evidence of it, a taken port, else a crash."""
    code = server.returncode
    if code is None:
        return
    time.sleep(0.1)  # its last words may still be in the pipe
    raise _death(server, kills, code)


def _death(server: ServerProcess, kills: KernelKills, code: int) -> TrialError:
    tail, words = server.tail, _words(server)
    if _MEMORY.search(tail) or kills.explain(code, tail):
        return OutOfMemoryError(f"The engine ran out of memory (exit code {code}).{words}")
    if _BUSY.search(tail):
        return _PortTakenError(f"The engine's port was taken.{words}")
    return CrashError(f"The engine ended with exit code {code}.{words}")


def _words(server: ServerProcess) -> str:
    said = last_words(server.tail.decode(errors="replace"))
    return f" Its last words: {said[:_LAST_WORDS]}" if said else ""


def last_words(tail: str) -> str:
    """The first exception that a tail of a log names, which is the cause of those after it; else its last line.

    What an engine says last is often a warning about the remains of the process that failed.
    """
    lines = tail.strip().splitlines()
    cause = next((match.group(1) for match in map(_EXCEPTION.search, lines) if match), None)
    return cause or (lines[-1][-_LAST_WORDS:] if lines else "")


def _served_model(client: httpx.Client) -> str | None:
    """The first model that the server names; None while it does not answer."""
    try:
        response = client.get("/v1/models")
        return str(response.json()["data"][0]["id"]) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
        return None


def _completes(client: httpx.Client, model: str) -> bool:
    """Whether the server completes a prompt: health pages turn green before an engine can do that."""
    body = {"model": model, "messages": [{"role": "user", "content": "Ready?"}], "max_tokens": 1, "temperature": 0}
    try:
        response = client.post("/v1/chat/completions", json=body)
        return response.status_code == 200 and bool(response.json()["choices"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


def _version(client: httpx.Client, path: str) -> str | None:
    try:
        match = _VERSION.search(str(client.get(path).json()["version"]))
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return match.group(0) if match else None

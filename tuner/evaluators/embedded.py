"""The embedded engine as an Evaluator: each trial in a process of its own, so that its death is a result."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from energyopt.core.config import Deployment
from energyopt.core.errors import CrashError, OutOfMemoryError, TrialError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload

from ..ports import Progress, ProgressSink
from ..wire import MAX_LINE_BYTES, Line, TrialJob
from .oom import KernelKills
from .process import WatchedProcess

_MEMORY_WORDS = re.compile(
    rb"out of memory|cannot allocate memory|can't allocate memory|bad_alloc|\bMemoryError\b|\boom-kill", re.IGNORECASE
)
_MEMORY_TAIL = 4096
"""A mention of memory earlier than in the last bytes of stderr is not what it died of."""
_LAST_WORDS = 300
_EXIT_PATIENCE = Seconds(15.0)
"""After its result a child may take this long to free the device and end by itself."""


class EmbeddedEvaluator:
    """Runs ``command`` (the trial worker) once a trial and relays what it says.

    ``env`` replaces the environment of the child; None inherits ours. The last 64 KiB of what a trial wrote to stderr
    go to a file in ``log_dir``, if one is given, named after the deployment's digest. ``meter`` is passed on to the
    worker. ``grace`` is the time between SIGTERM and SIGKILL when a trial has to be ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log_dir: Path | None = None,
        meter: str = "auto",
        grace: Seconds = Seconds(5.0),
    ) -> None:
        if not command:
            raise ValueError("the command of the trial worker is empty.")
        self._command = tuple(command)
        self._env = env
        self._log_dir = log_dir
        self._meter = meter
        self._grace = grace

    def run(
        self,
        deployment: Deployment,
        workload: Workload,
        plan: MeasurePlan,
        slos: Sequence[Slo],
        progress: ProgressSink,
    ) -> RunResult:
        """One trial. Returns when its process is gone, with its memory; raises TrialError and its kinds.

        An exception of ``progress`` or a KeyboardInterrupt ends the trial and goes on.
        """
        texts = tuple(str(slo) for slo in slos)
        job = TrialJob(deployment=deployment, workload=workload, plan=plan, slos=texts, meter=self._meter)
        progress(Progress("launching", 0.0))
        kills = KernelKills()
        child = WatchedProcess(self._command, job.model_dump_json().encode(), env=self._env, grace=self._grace)
        last: Line | None = None
        try:
            with child:
                last = self._follow(child, plan.timeout, progress)
                child.wait(_EXIT_PATIENCE)
        finally:
            log = self._keep_log(child, deployment)
        if last is not None and last.result is not None:
            return last.result
        if last is not None and last.error is not None:
            raise last.error.error()
        raise _death(child, log, kills)

    def _follow(self, child: WatchedProcess, timeout: Seconds, progress: ProgressSink) -> Line | None:
        """Relay progress until the last line; None if the child ended without one. Foreign lines go to the tail."""
        for text in child.lines(timeout, MAX_LINE_BYTES):
            line = Line.parse(text)
            if line is None:
                child.note(text + b"\n")
            elif line.progress is not None:
                progress(Progress(line.progress.stage, line.progress.fraction))
            else:
                return line
        return None

    def _keep_log(self, child: WatchedProcess, deployment: Deployment) -> Path | None:
        if self._log_dir is None or not child.tail:
            return None
        self._log_dir.mkdir(parents=True, exist_ok=True)
        path = self._log_dir / f"trial-{deployment.digest()}-{child.pid}.log"
        path.write_bytes(child.tail)
        return path


def _death(child: WatchedProcess, log: Path | None, kills: KernelKills) -> TrialError:
    """The error of a child that ended without a last line: memory if there is evidence of it, else a crash."""
    code = child.returncode
    if code is None:
        raise ValueError("the child has not ended.")
    how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code} and no result"
    words = child.tail.decode(errors="replace").strip().splitlines()
    said = f"; its last words: {words[-1][-_LAST_WORDS:]}" if words else ""
    where = f" (log: {log})" if log else ""
    if kills.explain(code, child.tail) or _MEMORY_WORDS.search(child.tail[-_MEMORY_TAIL:]):
        return OutOfMemoryError(f"The trial ran out of memory: its process {how}{said}{where}.")
    return CrashError(f"The trial's process {how}{said}{where}.")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

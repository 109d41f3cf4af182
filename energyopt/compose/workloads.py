"""From the words of a command line to a workload."""

from __future__ import annotations

from pathlib import Path

from energyopt.core.config import Config
from energyopt.core.errors import ConfigError
from tuner.workload.agentic import AgenticShape, agentic_trace
from tuner.workload.chat import chat_workload
from tuner.workload.formats import read_trace
from tuner.workload.lengths import parse_length
from tuner.workload.synthetic import TextShape, synthetic_trace, trace_of
from tuner.workload.thin import Thinning, thin
from tuner.workload.trace import Trace

GENERATORS = ("chat", "agentic", "synthetic")


class WorkloadRequest(Config):
    """``name`` is a file, a folder or a generator. Lengths are in the text form of ``parse_length``.

    ``scale`` divides the token counts and times of the agentic generator; ``keep_one_in`` thins blocks of a recorded
    trace. ``sessions`` None: all of a file, 256 of a generator.
    """

    name: str = "chat"
    form: str = "auto"
    block_size: int | None = None
    skip_bad: bool = False
    sessions: int | None = None
    seed: int = 0
    isl: str = "256"
    osl: str = "64"
    turns: str = "1"
    shared_tokens: int = 0
    scale: int = 1
    keep_one_in: int = 1


def build_workload(request: WorkloadRequest) -> Trace:
    """The trace. Raises ConfigError for a file that is absent or malformed and for parameters out of range."""
    count = request.sessions or 256
    if request.name == "chat":
        return trace_of(chat_workload(request.seed, sessions=count))
    if request.name == "agentic":
        return agentic_trace(request.seed, sessions=count, shape=AgenticShape().scaled(request.scale))
    if request.name == "synthetic":
        shape = TextShape(
            parse_length(request.isl), parse_length(request.osl), parse_length(request.turns), request.shared_tokens
        )
        return synthetic_trace(request.seed, sessions=count, shape=shape)
    path = Path(request.name)
    if not path.exists():
        raise ConfigError(f"The workload {request.name!r} is neither a file nor one of {', '.join(GENERATORS)}.")
    trace = read_trace(path, form=request.form, block_tokens=request.block_size, skip_bad=request.skip_bad)
    return thin(trace, Thinning(keep_one_in=request.keep_one_in, sessions=request.sessions))

"""The load of a trial: a chat workload's sessions in a closed loop, again and again, with live answers as history."""

from __future__ import annotations

from energyopt.core.clock import Clock
from energyopt.core.workload import Workload

from ..workload.synthetic import trace_of
from .ask import ReplayClient
from .dispatch import Dispatcher
from .foresight import Foresight
from .loads import ClosedLoop, Deck
from .pacer import Pace, Pacer
from .player import Stage
from .render import Calibration, ChatRenderer


def closed_loop(workload: Workload, client: ReplayClient, clock: Clock) -> tuple[ClosedLoop, Stage]:
    """``workload.concurrency`` lanes over its sessions without an end, and the stage they play on.

    Arrivals are left out, thinking is not. A repeated session has a mark in front of its first own text, so that a
    second round does not find the first one's prompts in the cache; the system prompt is shared as in a real service.
    """
    trace, pacer = trace_of(workload), Pacer(clock, None)
    renderer = ChatRenderer(trace.block_tokens, calibration=Calibration())
    stage = Stage(Dispatcher(client, clock, pacer), renderer, pacer, Pace(), Foresight(trace.block_tokens))
    return ClosedLoop(Deck(trace).deal(), workload.concurrency), stage

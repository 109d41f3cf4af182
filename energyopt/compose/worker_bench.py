"""What a worker of this host measures with, and how it describes itself."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import DeviceKind
from energyopt.core.leases import WorkerFacts
from engine.models import choose_device
from tuner.ports import Evaluator, PowerController
from tuner.source import LeasedTrial

from .machine import describe_machine
from .meters import visible_identities
from .results import Session
from .study import study_tools


class HostBench:
    """A ``Bench`` of this host; what trials log lies below the session's folder."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def tools(self, trial: LeasedTrial) -> tuple[Evaluator, PowerController]:
        return study_tools(self._session, trial.study_record(MonotonicClock().utc()))


def worker_facts(worker_id: str, *, device: DeviceKind, kinds: Sequence[str]) -> WorkerFacts:
    """Who asks for work: every device of this kind that the process sees is its own while it measures.

    Raises ConfigError for an absent GPU.
    """
    return WorkerFacts(
        id=worker_id,
        host=socket.gethostname(),
        hardware=hardware_name(device),
        devices=visible_identities(device),
        kinds=tuple(kinds),
    )


def hardware_name(device: DeviceKind) -> str:
    """The kind of machine in a line: two of the same line measure the same."""
    facts = describe_machine()
    chosen = choose_device(device)
    words = [facts["system"].rsplit(" ", 1)[-1], facts.get("cpu", "unknown CPU"), f"{facts['cores']} cores"]
    if chosen.type != "cpu":
        words += [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return ", ".join(words)[:300]

"""What a worker of this host measures with, and how it describes itself."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import DeviceKind
from energyopt.core.leases import WorkerFacts
from tuner.ports import Evaluator, PowerController
from tuner.source import LeasedTrial

from .machine_kind import hardware_name
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

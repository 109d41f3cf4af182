"""Leases on trials: who measures which queued trial until when, and the port where that is kept.

A lease is one attempt at one trial. Its id is the fencing token: whatever a worker says about a trial counts only while
the lease by that id lasts, so a worker that was away too long cannot write over who came after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from pydantic import Field, field_validator

from .config import Config
from .errors import UsageError
from .results import Result, RunResult
from .study import StudyState, TrialOutcome, TrialRecord, Value
from .units import Seconds

TTL = Seconds(30.0)
"""How long a lease outlives the last word of its worker."""
HEARD = Seconds(60.0)
"""A worker that asked for work or gave a sign of life in this time counts as a hand; a long poll takes less."""
MAX_ATTEMPTS = 3
"""Attempts that vanished, or ended by a fault of the infrastructure, before the trial counts as failed."""
STARTED, FINISHED, REQUEUED = "trial_started", "trial_finished", "trial_requeued"
"""Kinds of the events of a trial."""
CPU = "cpu:0"
"""The identity, within a host, of its processors."""
MEASURED_ON = "measured_on"
"""The fact of a study that names the kind of machine of its workers."""
MAX_WIDTH = 4
"""Trials of one study that are measured at once; more would cost search quality."""


class LeaseGoneError(UsageError):
    """The lease has ended, was ended, or never was: what came with it is not taken."""

    http_status = 410


class DevicesTakenError(UsageError):
    """Another worker measures on one of the devices; ask again when it has ended."""

    http_status = 409


class WorkerFacts(Config):
    """Who asks for work. ``id`` is unique to a process; who asks again under it gets the trial that it has already.

    ``hardware`` names the kind of machine: trials of one study are only compared if all ran on one kind. ``devices``
    are identities within ``host``, and no two leases share one. ``kinds`` are the evaluators that it can run.
    """

    id: str = Field(min_length=1, max_length=200)
    host: str = Field(min_length=1, max_length=255)
    hardware: str = Field(min_length=1, max_length=300)
    devices: tuple[str, ...] = Field(min_length=1, max_length=64)
    kinds: tuple[str, ...] = ("embedded",)

    @field_validator("devices")
    @classmethod
    def _distinct(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((device for device in devices if devices.count(device) > 1), None)
        if twice is not None:
            raise ValueError(f"device {twice[:60]!r} is named twice")
        return devices

    def devices_for(self, kind: str) -> tuple[str, ...]:
        """What a trial on this kind of device takes: also the processors, if it is measured on those."""
        return self.devices if kind != "cpu" or CPU in self.devices else (*self.devices, CPU)


class LeaseRecord(Result):
    """One lease. ``stage`` and ``fraction`` are the last word of its worker."""

    id: str
    study_id: str
    number: int
    attempt: int
    worker: str
    expires: datetime
    stage: str = ""
    fraction: float = 0.0


class WorkerRecord(Result):
    """A worker that asked for work; ``trial`` is what it measures now."""

    id: str
    host: str
    hardware: str
    devices: tuple[str, ...]
    tenant: str | None
    seen: datetime
    study_id: str | None = None
    trial: int | None = None


class Glance(Result):
    """What a leader looks at again and again: where its study stands, and which of its trials are done.

    ``done`` says how long each took. ``lost`` is whether leases have ended without a word, ``forsaken`` whether the
    worker that ran the final comparison is not heard of any more.
    """

    state: StudyState
    owner: str | None
    done: Mapping[int, Seconds]
    leases: tuple[LeaseRecord, ...]
    lost: bool
    forsaken: bool = False


class LeaseStore(Protocol):
    """Where leases are kept. Every method is one transaction. Raises StoreError when the database refuses.

    Work is given out of studies that are led, that is: somebody holds the study and has said so by ``lead``.
    """

    def lead(self, study_id: str, leader: str, *, verifier: WorkerFacts | None = None) -> None:
        """Open the queued trials of a study that ``leader`` holds to workers, as long as it holds it.

        All are measured on one kind of machine: the ``verifier``'s, if there is one, and only it is given the runs of
        the final comparison. Else the first worker settles the kind, and the first run of the comparison its machine.
        Raises HeldError for who does not hold the study, ConfigError for a verifier of another kind.
        """
        ...

    def kind_of(self, study_id: str) -> str | None:
        """The kind of machine that trials of a study were measured on, or are now; None while any would do."""
        ...

    def compare_anew(self, study_id: str) -> bool:
        """Let another worker run the final comparison, from its beginning, if its own is not heard of any more."""
        ...

    def acquire(
        self, worker: WorkerFacts, ttl: Seconds, *, tenant: str | None = None, study_id: str | None = None
    ) -> LeaseRecord | None:
        """The next queued trial that this worker may run, of ``study_id`` alone if given; None if there is none.

        Raises DevicesTakenError, and ConfigError for the name of another tenant's worker.
        """
        ...

    def renew(self, lease_id: str, ttl: Seconds, *, stage: str = "", fraction: float = 0.0) -> LeaseRecord:
        """A sign of life. One that is over by the clock lasts again, unless somebody has ended it: LeaseGoneError."""
        ...

    def finish(
        self,
        lease_id: str,
        outcome: TrialOutcome,
        *,
        result: RunResult | None = None,
        error: str | None = None,
        summary: Mapping[str, Value] | None = None,
    ) -> TrialRecord:
        """The trial is DONE, with an event of kind ``FINISHED`` that holds ``summary`` and how long it took.

        Said twice, it is done once. A lease that is over by the clock counts until somebody else ends it. Raises
        LeaseGoneError.
        """
        ...

    def give_back(self, lease_id: str, *, fault: str | None = None) -> None:
        """The trial was not measured: it is queued again.

        With a ``fault`` of the infrastructure the attempt counts, and the last of ``MAX_ATTEMPTS`` ends the trial.
        Raises LeaseGoneError.
        """
        ...

    def reap(self, study_id: str, *, orphans: bool = False) -> list[int]:
        """Queue the trials whose leases have ended, with ``orphans`` also those that run without one; their numbers.

        Only who leads the study knows that nobody else runs a trial without a lease.
        One lost in all of its ``MAX_ATTEMPTS`` is a crash of its configuration.
        """
        ...

    def glance(self, study_id: str, numbers: Sequence[int]) -> Glance:
        """How a study stands, and which of these trials are done; no documents are read."""
        ...

    def trial_of(self, lease_id: str) -> tuple[str, int]:
        """Study and number of a lease's trial, also if it has ended. Raises LeaseGoneError for one that never was."""
        ...

    def hands(self, study_id: str, within: Seconds) -> int:
        """Workers that were heard of in the last ``within`` seconds and may run trials of this study."""
        ...

    def workers(self, within: Seconds, tenant: str | None = None) -> Sequence[WorkerRecord]:
        """Workers heard of lately."""
        ...

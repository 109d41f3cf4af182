"""The port where studies are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from .config import Deployment
from .results import RunResult
from .study import (
    Artifact,
    Event,
    Origin,
    Recommendation,
    StudyRecord,
    StudySpec,
    StudyState,
    TrialOutcome,
    TrialRecord,
    Value,
)
from .units import Seconds


class StudyStore(Protocol):
    """Where studies are kept. Every method is one transaction: after it returns, ``kill -9`` loses nothing of it.

    All methods raise StoreError when the database refuses, NotFoundError for an unknown id or number. Safe to call
    from several threads and processes.
    """

    def create_study(self, spec: StudySpec, machine: Mapping[str, str]) -> StudyRecord: ...

    def study(self, study_id: str) -> StudyRecord:
        """By id or by a prefix of it that is unique; "latest" is the newest."""
        ...

    def studies(self, *, limit: int = 50) -> list[StudyRecord]:
        """Newest first."""
        ...

    def claim(self, study_id: str, owner: str, ttl: Seconds) -> None:
        """Become or stay the owner. Raises StoreError while another owner's lease lasts."""
        ...

    def release(self, study_id: str, owner: str) -> None:
        """Give the lease back; no effect if ``owner`` does not hold it."""
        ...

    def set_state(self, study_id: str, state: StudyState, *, error: str | None = None) -> None: ...

    def change_state(
        self, study_id: str, state: StudyState, *, when: Collection[StudyState], error: str | None = None
    ) -> bool:
        """``set_state`` if the study is in one of ``when``, with an event of kind "state"; False if it is not."""
        ...

    def recommend(self, study_id: str, recommendation: Recommendation) -> None:
        """Store the outcome and move the study to SUCCEEDED, in one transaction."""
        ...

    def add_trial(
        self,
        study_id: str,
        params: Mapping[str, Value],
        deployment: Deployment,
        origin: Origin,
        pair: int | None = None,
    ) -> TrialRecord:
        """A new QUEUED trial with the next number (0 is the baseline)."""
        ...

    def start_attempt(self, study_id: str, number: int, owner: str) -> None:
        """QUEUED -> RUNNING, one more attempt. Raises StoreError from any other state."""
        ...

    def finish_trial(
        self,
        study_id: str,
        number: int,
        outcome: TrialOutcome,
        *,
        result: RunResult | None = None,
        error: str | None = None,
    ) -> TrialRecord:
        """RUNNING -> DONE with its result. Raises StoreError if it is not running (a late worker)."""
        ...

    def requeue_lost(self, study_id: str, owner: str) -> list[int]:
        """RUNNING -> QUEUED for every attempt that ``owner`` does not run itself; returns their numbers."""
        ...

    def trials(self, study_id: str) -> list[TrialRecord]:
        """In order of their numbers."""
        ...

    def add_event(self, study_id: str, kind: str, data: Mapping[str, Value]) -> Event: ...

    def events(self, study_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]: ...

    def add_artifact(self, study_id: str, artifact: Artifact) -> None:
        """Replaces one of the same name."""
        ...

    def artifacts(self, study_id: str) -> Sequence[Artifact]: ...

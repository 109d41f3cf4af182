"""Studies in memory: the ``StudyStore`` for tests and dry runs. It keeps every promise but surviving the process."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import Deployment
from energyopt.core.errors import HeldError, NotFoundError, StoreError
from energyopt.core.results import RunResult
from energyopt.core.study import (
    STATE_EVENT,
    Artifact,
    Event,
    Origin,
    Recommendation,
    StudyRecord,
    StudySpec,
    StudyState,
    TrialOutcome,
    TrialRecord,
    TrialState,
    Value,
)
from energyopt.core.units import Seconds

from .codec import clean, clean_optional, clean_texts, clean_values


@dataclass
class _Study:
    """One study and all that belongs to it; ``owners`` says who runs (or ran last) each trial."""

    record: StudyRecord
    trials: list[TrialRecord] = field(default_factory=list)
    owners: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)


class MemoryStudyStore:
    """A ``StudyStore`` that forgets. One lock serves as its transaction; what it returns are copies."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._lock = threading.RLock()
        self._studies: dict[str, _Study] = {}
        self._event_ids = itertools.count(1)

    def create_study(self, spec: StudySpec, machine: Mapping[str, str]) -> StudyRecord:
        now = self._clock.utc()
        record = StudyRecord(
            id=secrets.token_hex(6),
            spec=spec,
            state=StudyState.QUEUED,
            created=now,
            updated=now,
            machine=clean_texts(machine),
        )
        with self._lock:
            self._studies[record.id] = _Study(record)
        return record.model_copy(deep=True)

    def study(self, study_id: str) -> StudyRecord:
        with self._lock:
            found = list(reversed(self._studies)) if study_id == "latest" else [study_id]
            if study_id == "latest" and not found:
                raise NotFoundError("There is no latest study: none was made.")
            if found[0] not in self._studies:
                found = [known for known in self._studies if study_id and known.startswith(study_id)]
                if len(found) > 1:
                    raise NotFoundError(f"{study_id!r} is the beginning of several studies: give more of the id.")
            return self._study(found[0] if found else study_id).record.model_copy(deep=True)

    def studies(self, *, limit: int = 50) -> list[StudyRecord]:
        with self._lock:
            newest = list(reversed(self._studies.values()))[: max(0, limit)]
            return [study.record.model_copy(deep=True) for study in newest]

    def claim(self, study_id: str, owner: str, ttl: Seconds) -> None:
        with self._lock:
            study, now, owner = self._study(study_id), self._clock.utc(), clean(owner)
            holder, until = study.record.owner, study.record.lease_until
            if holder not in (None, owner) and until is not None and until > now:
                raise HeldError(f"Study {study_id} is being worked on by {holder} until {until}.")
            lease = {"owner": owner, "lease_until": now + timedelta(seconds=ttl)}
            study.record = study.record.model_copy(update=lease)

    def release(self, study_id: str, owner: str) -> None:
        with self._lock:
            study = self._study(study_id)
            if study.record.owner == clean(owner):
                study.record = study.record.model_copy(update={"owner": None, "lease_until": None})

    def set_state(self, study_id: str, state: StudyState, *, error: str | None = None) -> None:
        with self._changing(study_id) as study:
            study.record = study.record.model_copy(update={"state": state, "error": clean_optional(error)})

    def change_state(
        self, study_id: str, state: StudyState, *, when: Collection[StudyState], error: str | None = None
    ) -> bool:
        with self._lock:
            if self._study(study_id).record.state not in when:
                return False
            self.set_state(study_id, state, error=error)
            self.add_event(study_id, STATE_EVENT, {"state": state.value, "error": error})
            return True

    def recommend(self, study_id: str, recommendation: Recommendation) -> None:
        with self._changing(study_id) as study:
            outcome = {"state": StudyState.SUCCEEDED, "error": None, "recommendation": recommendation}
            study.record = study.record.model_copy(update=outcome)

    def add_trial(
        self,
        study_id: str,
        params: Mapping[str, Value],
        deployment: Deployment,
        origin: Origin,
        pair: int | None = None,
    ) -> TrialRecord:
        with self._changing(study_id) as study:
            trial = TrialRecord(
                number=len(study.trials),
                origin=origin,
                params=clean_values(params),
                deployment=deployment,
                state=TrialState.QUEUED,
                pair=pair,
                created=study.record.updated,
            )
            study.trials.append(trial)
            return trial.model_copy(deep=True)

    def start_attempt(self, study_id: str, number: int, owner: str) -> None:
        with self._changing(study_id) as study:
            trial = _trial(study, number, TrialState.QUEUED)
            started = {"state": TrialState.RUNNING, "attempts": trial.attempts + 1}
            study.trials[number] = trial.model_copy(update=started)
            study.owners[number] = clean(owner)

    def finish_trial(
        self,
        study_id: str,
        number: int,
        outcome: TrialOutcome,
        *,
        result: RunResult | None = None,
        error: str | None = None,
    ) -> TrialRecord:
        with self._changing(study_id) as study:
            trial = _trial(study, number, TrialState.RUNNING)
            ending = {"state": TrialState.DONE, "outcome": outcome, "result": result, "error": clean_optional(error)}
            study.trials[number] = trial.model_copy(update={**ending, "ended": study.record.updated})
            return study.trials[number].model_copy(deep=True)

    def requeue_lost(self, study_id: str, owner: str) -> list[int]:
        with self._changing(study_id) as study:
            running = [trial for trial in study.trials if trial.state is TrialState.RUNNING]
            lost = [trial.number for trial in running if study.owners[trial.number] != clean(owner)]
            for number in lost:
                study.trials[number] = study.trials[number].model_copy(update={"state": TrialState.QUEUED})
            return lost

    def trials(self, study_id: str) -> list[TrialRecord]:
        with self._lock:
            return [trial.model_copy(deep=True) for trial in self._study(study_id).trials]

    def add_event(self, study_id: str, kind: str, data: Mapping[str, Value]) -> Event:
        with self._lock:
            study, values = self._study(study_id), clean_values(data)
            event = Event(id=next(self._event_ids), at=self._clock.utc(), kind=clean(kind), data=values)
            study.events.append(event)
            return event.model_copy(deep=True)

    def events(self, study_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        with self._lock:
            later = [event for event in self._study(study_id).events if event.id > after]
            return [event.model_copy(deep=True) for event in later[: max(0, limit)]]

    def add_artifact(self, study_id: str, artifact: Artifact) -> None:
        with self._lock:
            self._study(study_id).artifacts[artifact.name] = artifact

    def artifacts(self, study_id: str) -> list[Artifact]:
        with self._lock:
            return sorted(self._study(study_id).artifacts.values(), key=lambda artifact: artifact.name)

    @contextmanager
    def _changing(self, study_id: str) -> Iterator[_Study]:
        """The study, for one change that succeeds or leaves everything as it was, the time of the change included."""
        with self._lock:
            study = self._study(study_id)
            before = study.record
            study.record = before.model_copy(update={"updated": self._clock.utc()})
            try:
                yield study
            except BaseException:
                study.record = before
                raise

    def _study(self, study_id: str) -> _Study:
        study = self._studies.get(study_id)
        if study is None:
            raise NotFoundError(f"There is no study {study_id!r}.")
        return study


def _trial(study: _Study, number: int, state: TrialState) -> TrialRecord:
    if not 0 <= number < len(study.trials):
        raise NotFoundError(f"Study {study.record.id} has no trial {number}.")
    trial = study.trials[number]
    if trial.state is not state:
        raise StoreError(f"Trial {number} of study {study.record.id} is {trial.state}, not {state}.")
    return trial

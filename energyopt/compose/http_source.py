"""Trials from a service over HTTP: the ``TrialSource`` of a worker that does not reach the database."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json

from energyopt.client import ApiError, Client
from energyopt.client.calls import Call
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.leases import TTL, DevicesTakenError, LeaseGoneError, WorkerFacts
from energyopt.core.results import Result, RunResult
from energyopt.core.study import TrialOutcome
from energyopt.core.units import Seconds
from tuner.source import Failure, LeasedTrial

T = TypeVar("T")
LEASES = "/v1/leases"
MAX_WAIT = Seconds(30.0)
_AWAY = 500
_OFTEN = 429
_GONE = 410
_TAKEN = 409
_KEY = (401, 403)
_BEAT = TTL / 4
"""Seconds that a sign of life may take: one that hangs must not use up the time of those after it."""
_NOTHING: TypeAdapter[None] = TypeAdapter(None)
_MAYBE: TypeAdapter[LeasedTrial | None] = TypeAdapter(LeasedTrial | None)


class Completed(Result):
    """What the service made of a result."""

    outcome: TrialOutcome


class HttpSource:
    """A ``TrialSource`` through a client. A key that is refused, or too little, is raised as ApiError.

    Whatever else the service refuses is a ConfigError: of this call alone.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def acquire(self, worker: WorkerFacts, wait: Seconds = Seconds(0.0)) -> LeasedTrial | None:
        body = {"worker": worker.model_dump(mode="json"), "wait": min(wait, MAX_WAIT)}
        return self._send(Call("POST", LEASES, _MAYBE, body=body))

    def beat(self, lease: str, stage: str, fraction: float) -> None:
        body = {"stage": stage, "fraction": fraction}
        self._send(Call("PUT", f"{LEASES}/{lease}", _NOTHING, body=body, timeout=_BEAT))

    def complete(self, lease: str, result: RunResult) -> TrialOutcome:
        body = {"result": from_json(result.model_dump_json())}
        return self._send(Call("POST", f"{LEASES}/{lease}:complete", TypeAdapter(Completed), body=body)).outcome

    def fail(self, lease: str, failure: Failure) -> None:
        self._say("POST", f"{lease}:fail", {"outcome": failure.outcome.value, "error": failure.error[:10_000] or "?"})

    def fault(self, lease: str, reason: str) -> None:
        self._say("POST", f"{lease}:fault", {"reason": reason[:10_000] or "?"})

    def release(self, lease: str) -> None:
        self._say("DELETE", lease, None)

    def _say(self, method: str, path: str, body: dict[str, Any] | None) -> None:
        self._send(Call(method, f"{LEASES}/{path}", _NOTHING, body=body))

    def _send(self, call: Call[T]) -> T:
        try:
            return self._client.send(call)
        except ApiError as error:
            if error.status == _GONE:
                raise LeaseGoneError(str(error)) from error
            if error.status == _TAKEN:
                raise DevicesTakenError(str(error)) from error
            if error.status is None or error.status == _OFTEN or error.status >= _AWAY:
                raise StoreError(str(error)) from error
            if error.status in _KEY:
                raise
            raise ConfigError(str(error)) from error

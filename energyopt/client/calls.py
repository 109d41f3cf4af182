"""What each call of the service is: method, path, parameters, and the type of its answer. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from energyopt.core.errors import EnergyoptError

from .models import Front, KeyList, Page, Study, StudyLine, Trial

T = TypeVar("T")
STUDIES = "/v1/studies"


class ApiError(EnergyoptError):
    """What the service answered instead: ``status`` and the problem document, if it sent one."""

    def __init__(self, message: str, status: int | None = None, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.problem = status, dict(problem or {})
        # As the local command would end: 3 for nothing feasible, 2 for what was asked wrongly.
        kind = str(self.problem.get("type", ""))
        wrong = status is not None and 400 <= status < 500
        self.exit_code = 3 if kind.endswith("no-feasible-trial") else (2 if wrong else 1)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    answer: TypeAdapter[T]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds, where the client's own are too many."""

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        given = {name: value for name, value in self.query.items() if value is not None}
        timeout = client.timeout if self.timeout is None else self.timeout
        headers = dict(self.headers)
        return client.build_request(
            self.method, self.path, params=given, json=self.body, headers=headers, timeout=timeout
        )

    def read(self, reply: httpx.Response) -> T:
        """The typed answer. Raises ApiError."""
        if reply.is_error:
            raise problem_of(reply)
        try:
            if reply.status_code == httpx.codes.NO_CONTENT:
                return self.answer.validate_python(None)
            if reply.headers.get("content-type", "").startswith("application/json"):
                return self.answer.validate_json(reply.content)
            return self.answer.validate_python(reply.text)
        except ValidationError as error:
            raise ApiError(
                f"The answer to {self.method} {self.path} is of another version.", reply.status_code
            ) from error


def problem_of(reply: httpx.Response) -> ApiError:
    """The problem that the service sent, in its own words."""
    try:
        problem = reply.json()
    except ValueError:
        problem = {}
    problem = problem if isinstance(problem, dict) else {}
    detail = problem.get("detail") or f"The service answered {reply.status_code}."
    return ApiError(str(detail), reply.status_code, problem)


def create_study(body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Call[Study]:
    headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
    return Call("POST", STUDIES, TypeAdapter(Study), body=body, headers=headers)


def plan_study(body: Mapping[str, Any]) -> Call[dict[str, Any]]:
    """A dry run: nothing is stored."""
    return Call("POST", STUDIES, TypeAdapter(dict[str, Any]), {"dry_run": "true"}, body)


def list_studies(
    *, states: Sequence[str] = (), labels: Mapping[str, str] | None = None, limit: int = 50, cursor: str | None = None
) -> Call[Page[StudyLine]]:
    pairs = [f"{name}={value}" for name, value in (labels or {}).items()]
    query = {"state": list(states) or None, "label": pairs or None, "limit": limit, "cursor": cursor}
    return Call("GET", STUDIES, TypeAdapter(Page[StudyLine]), query)


def get_study(study: str) -> Call[Study]:
    return Call("GET", f"{STUDIES}/{study}", TypeAdapter(Study))


def change_study(study: str, revision: int, change: Mapping[str, Any]) -> Call[Study]:
    headers = {"if-match": f'"r{revision}"'}
    return Call("PATCH", f"{STUDIES}/{study}", TypeAdapter(Study), body=change, headers=headers)


def ask_study(study: str, word: str) -> Call[Study]:
    """``word`` is cancel, pause or resume."""
    return Call("POST", f"{STUDIES}/{study}:{word}", TypeAdapter(Study))


def delete_study(study: str) -> Call[None]:
    return Call("DELETE", f"{STUDIES}/{study}", TypeAdapter(None))


def list_trials(
    study: str, *, sort: str = "number", outcomes: Sequence[str] = (), limit: int = 100, cursor: str | None = None
) -> Call[Page[Trial]]:
    query = {"sort": sort, "outcome": list(outcomes) or None, "limit": limit, "cursor": cursor}
    return Call("GET", f"{STUDIES}/{study}/trials", TypeAdapter(Page[Trial]), query)


def pareto(study: str) -> Call[Front]:
    return Call("GET", f"{STUDIES}/{study}/pareto", TypeAdapter(Front))


def recommendation(study: str) -> Call[dict[str, Any]]:
    return Call("GET", f"{STUDIES}/{study}/recommendation", TypeAdapter(dict[str, Any]))


def manifest(study: str, form: str = "energyopt") -> Call[str]:
    """A launch command; ``form`` is energyopt or vllm."""
    return Call("GET", f"{STUDIES}/{study}/manifest", TypeAdapter(str), {"format": form})


def devices() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/devices", TypeAdapter(dict[str, Any]))


def list_keys() -> Call[KeyList]:
    return Call("GET", "/v1/keys", TypeAdapter(KeyList))

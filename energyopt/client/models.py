"""Answers of the service as a client reads them: fields that a newer service adds are let through."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class Answer(BaseModel):
    """Base of answers."""

    model_config = ConfigDict(frozen=True, extra="allow")


class StudyLine(Answer):
    """A study in a list."""

    id: str
    name: str
    model: str
    state: str
    created: datetime
    updated: datetime
    slos: tuple[str, ...]
    maximize: str
    error: str | None = None
    recommendation: Mapping[str, Any] | None = None
    labels: Mapping[str, str] = {}
    progress: Mapping[str, Any] | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("succeeded", "no_feasible", "failed", "cancelled")


class Study(StudyLine):
    """One study. ``revision`` is what a change must name."""

    revision: int
    budget: Mapping[str, Any]
    trials: Mapping[str, int]
    links: Mapping[str, str]


class Trial(Answer):
    """A trial in a list; figures that were not measured are None, infinite ones are infinite."""

    number: int
    origin: str
    state: str
    outcome: str | None
    params: Mapping[str, Any]
    error: str | None
    tokens_per_joule: float | None
    output_rate: float | None
    ttft_p90: float | None
    itl_p99: float | None
    tpot_p90: float | None
    energy_source: str | None


class Front(Answer):
    """Pareto-optimal trials over ``x`` (more is better) and ``y`` (less is better)."""

    x: str
    y: str
    items: tuple[Trial, ...]


class KeyList(Answer):
    items: tuple[Mapping[str, Any], ...]


class Page(Answer, Generic[T]):
    """``next`` is the cursor of the following page, None on the last."""

    items: tuple[T, ...]
    next: str | None = None


class Happening(Answer):
    """One event of a stream; ``id`` is None for those that only say where the study stands."""

    id: int | None
    event: str
    data: Any

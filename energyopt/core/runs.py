"""Runs that belong to no study (benchmarks, accuracy checks): what is kept of each, and the port where it is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from .results import Result


class RunRecord(Result):
    """One run. ``document`` is the JSON of its kind, as the part that made it reads it again."""

    id: str
    created: datetime
    kind: str
    name: str
    model: str
    valid: bool
    document: str


class RunStore(Protocol):
    """Where runs are kept. Every method is one transaction and raises StoreError when the database refuses."""

    def add_run(self, run: RunRecord) -> None:
        """Raises StoreError for an id that exists."""
        ...

    def run(self, run_id: str, kind: str) -> RunRecord:
        """By id or by a prefix of it that is unique; "latest" is the newest of the kind. Raises NotFoundError."""
        ...

    def runs(self, kind: str, *, limit: int = 50) -> list[RunRecord]:
        """Newest first."""
        ...

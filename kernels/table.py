"""The file of measured launches: which device and versions it speaks of, and what was found.

A table is input from outside: its size, shape and every number are checked, and a plan is taken only if it is one of
those that the tuner itself would try. A table of another device, architecture or Triton release
says nothing about this one and is refused with the reason.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .choices import Choices, Plan, PlanField, Problem, Shape

MAX_BYTES = 1 << 20
"""A table of a thousand choices takes a third of it."""

Count = Annotated[int, Field(ge=0, le=1 << 20)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Figure = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TableError(ValueError):
    """A table that cannot be read, is malformed, or speaks of something else than this machine."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Device(_Strict):
    """What a measurement depends on. ``driver`` is for the record: a newer one does not void a table."""

    device: Name
    architecture: Name
    driver: Name
    triton: Name


class EntryEnergy(_Strict):
    """Joules of one run, the half-width of their interval, and the kind of source that told them."""

    joules: Figure
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: Name


class Entry(_Strict):
    """One choice. ``seconds`` and ``energy`` are of one run (None: no sensor); ``default_*`` those of the launch that
    would be taken without a table. ``failed`` counts the plans out of ``tried`` that could not be taken."""

    op: Name
    heads: Count
    kv_heads: Count
    width: Count
    dtype: Name
    windowed: bool = False
    rows: Annotated[int, Field(ge=1, le=1 << 20)]
    length: Annotated[int, Field(ge=1, le=1 << 24)]
    plan: dict[PlanField, Count]
    seconds: Figure
    energy: EntryEnergy | None = None
    default_seconds: Figure
    default_energy: EntryEnergy | None = None
    tried: Count
    failed: Count

    @property
    def problem(self) -> Problem:
        shape = Shape(self.heads, self.kv_heads, self.width, self.dtype, self.windowed)
        return Problem(self.op, shape, self.rows, self.length)

    def plan_of(self) -> Plan:
        """Raises TableError where a number is missing."""
        try:
            return Plan(**self.plan)
        except TypeError as error:
            raise TableError(f"The plan for {self.problem} lacks a number: {dict(self.plan)}.") from error


class Table(_Strict):
    """Measured choices of one device. ``complete``: the last search measured all that it was asked."""

    format: Literal[2] = 2
    measured: Device
    objective: Literal["energy", "time"]
    date: Name
    complete: bool
    entries: tuple[Entry, ...] = Field(default=(), max_length=2000)

    def with_entries(self, entries: Iterable[Entry], *, complete: bool) -> Table:
        return self.model_copy(update={"entries": tuple(entries), "complete": complete})


def read_table(path: Path) -> Table:
    """Raises TableError for a file that is missing, too large or no table."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TableError(f"The table of kernels {path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise TableError(f"The table of kernels {path} is larger than the {MAX_BYTES} bytes that a table may have.")
    try:
        return Table.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise TableError(f"{path} is no table of kernels: {where}: {first['msg']}.") from error


def write_table(path: Path, table: Table) -> None:
    """Replace ``path`` at once, so that a reader, or a kill, never meets half a table. Raises TableError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".table-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(table.model_dump_json(indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TableError(f"The table of kernels {path} cannot be written: {error.strerror}.") from error


def mismatch(table: Table, here: Device) -> str | None:
    """Why ``table`` says nothing about this machine; None if it does."""
    for name in ("device", "architecture", "triton"):
        theirs, ours = getattr(table.measured, name), getattr(here, name)
        if theirs != ours:
            return f"it was measured with {name} {theirs!r}, and here it is {ours!r}"
    return None


def choices_of(table: Table, permits: Callable[[Problem, Plan], bool]) -> Choices:
    """The table's plans as choices. Raises TableError for a plan that the tuner would not try."""
    plans = {}
    for entry in table.entries:
        problem, plan = entry.problem, entry.plan_of()
        if not permits(problem, plan):
            raise TableError(f"The plan {plan} is not one of those that {problem} can take.")
        plans[problem] = plan
    return Choices(plans)

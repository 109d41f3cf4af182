"""The tables. Every name starts with ``energyopt_``, so that they can share a database with other programs.

A document (spec, result, recommendation) is JSON text, as its pydantic model writes it, and is the truth of which the
columns beside it are copies: what a person filters or plots by has a column or a row of its own, the rest does not.
Quantities are SI and named as in ``energyopt.core``. Unknown is NULL or no row, never 0.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

PREFIX = "energyopt_"
"""What every table of ours, the version table of the migrations included, starts with."""

VERSION_TABLE = "energyopt_alembic_version"
"""Alembic's default name is taken by Optuna in a shared database."""


class UtcDateTime(TypeDecorator[datetime]):
    """A time-zone aware moment, always UTC in Python. SQLite has no zones: it holds the UTC time without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Raises ValueError for a moment without a zone: whose midnight would it be?"""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the moment {value} has no time zone")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_BIG = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER is an automatic key there; it is 64 bits wide


class Base(DeclarativeBase):
    """All tables of this store, with names for every constraint so that a later migration can address them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime(), str: Text(), float: Double()}  # noqa: RUF012 (SQLAlchemy's hook)


class StudyRow(Base):
    """One study. ``sequence`` orders studies by creation even when the wall clock was set back.

    ``slos`` (a JSON array) and ``maximize`` are copies from the spec, for lists.
    """

    __tablename__ = "energyopt_studies"
    __table_args__ = ({"sqlite_autoincrement": True},)

    sequence: Mapped[int] = mapped_column(_BIG, primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    model: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    created: Mapped[datetime]
    updated: Mapped[datetime]
    owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    error: Mapped[str | None]
    spec: Mapped[str]
    machine: Mapped[str]
    recommendation: Mapped[str | None]
    slos: Mapped[str | None]
    maximize: Mapped[str | None]


class TrialRow(Base):
    """One trial. ``energy_source`` says how its joules were obtained and is NULL where there are none.

    The numbers from ``tokens_per_joule`` to ``tpot_p90`` are copies of rows of MetricRow: by these lists are sorted.
    """

    __tablename__ = "energyopt_trials"
    __table_args__ = (UniqueConstraint("study_id", "number"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(_BIG, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("energyopt_studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    origin: Mapped[str]
    pair: Mapped[int | None]
    state: Mapped[str]
    outcome: Mapped[str | None]
    attempts: Mapped[int]
    created: Mapped[datetime]
    ended: Mapped[datetime | None]
    error: Mapped[str | None]
    deployment_digest: Mapped[str] = mapped_column(index=True)
    energy_source: Mapped[str | None]
    simulated: Mapped[bool | None]
    tokens_per_joule: Mapped[float | None]
    output_rate: Mapped[float | None]
    ttft_p90: Mapped[float | None]
    itl_p99: Mapped[float | None]
    tpot_p90: Mapped[float | None]
    params: Mapped[str]
    deployment: Mapped[str]
    result: Mapped[str | None]

    runs: Mapped[list[AttemptRow]] = relationship(order_by="AttemptRow.number", passive_deletes=True)
    metrics: Mapped[list[MetricRow]] = relationship(passive_deletes=True)
    energy: Mapped[list[EnergyRow]] = relationship(order_by="EnergyRow.position", passive_deletes=True)


class AttemptRow(Base):
    """One try at a trial: who, when, and whether it ``finished`` or was ``lost``; ``ending`` is NULL while it runs."""

    __tablename__ = "energyopt_attempts"

    trial_id: Mapped[int] = mapped_column(_BIG, ForeignKey("energyopt_trials.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]
    started: Mapped[datetime]
    ended: Mapped[datetime | None]
    ending: Mapped[str | None]


class MetricRow(Base):
    """One number of a finished trial, by the names of ``energyopt.store.metrics``."""

    __tablename__ = "energyopt_metrics"

    trial_id: Mapped[int] = mapped_column(_BIG, ForeignKey("energyopt_trials.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True, index=True)
    value: Mapped[float]


class EnergyRow(Base):
    """What one sensor said over a trial's window: joules, half-width of their interval, seconds.

    The window's length is ``duration`` here because ``window`` is a word of SQL.
    """

    __tablename__ = "energyopt_energy"

    trial_id: Mapped[int] = mapped_column(_BIG, ForeignKey("energyopt_trials.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str]
    scope: Mapped[str]
    source: Mapped[str]
    joules: Mapped[float]
    error: Mapped[float]
    duration: Mapped[float]


class SensorRow(Base):
    """A physical sensor whose energy is kept over time; ``device`` is its identity, never an index."""

    __tablename__ = "energyopt_sensors"
    __table_args__ = (UniqueConstraint("host", "device", "scope"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(_BIG, primary_key=True)
    host: Mapped[str]
    device: Mapped[str]
    scope: Mapped[str]


class RollupRow(Base):
    """Energy of one sensor over ``resolution`` seconds from the Unix second ``at``; sums of rows are exact.

    ``covered_us`` microseconds of them are known. ``doubt`` (joules) adds up over rows, ``edge`` only counts once for
    a window. ``sources`` has a bit for each member of ``Source``, in its order. Power is that of the pieces within.
    """

    __tablename__ = "energyopt_rollups"
    __table_args__ = ({"sqlite_with_rowid": False},)

    resolution: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[int] = mapped_column(_BIG, primary_key=True, autoincrement=False)
    sensor_id: Mapped[int] = mapped_column(_BIG, ForeignKey("energyopt_sensors.id"), primary_key=True)
    nanojoules: Mapped[int] = mapped_column(_BIG)
    covered_us: Mapped[int] = mapped_column(_BIG)
    pieces: Mapped[int]
    watts_min: Mapped[float]
    watts_max: Mapped[float]
    doubt: Mapped[float]
    edge: Mapped[float]
    sources: Mapped[int]


class ChunkRow(Base):
    """Every piece of one sensor's energy within a run's window, packed (see ``chunk_codec``), about a minute a row."""

    __tablename__ = "energyopt_chunks"

    run: Mapped[str] = mapped_column(primary_key=True)
    sensor_id: Mapped[int] = mapped_column(_BIG, ForeignKey("energyopt_sensors.id"), primary_key=True)
    start_us: Mapped[int] = mapped_column(_BIG, primary_key=True, autoincrement=False, index=True)
    end_us: Mapped[int] = mapped_column(_BIG)
    pieces: Mapped[int]
    payload: Mapped[bytes] = mapped_column(LargeBinary)


class EventRow(Base):
    """Something that happened; the id never repeats, so a reader can go on after the last one it saw."""

    __tablename__ = "energyopt_events"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(_BIG, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("energyopt_studies.id", ondelete="CASCADE"), index=True)
    at: Mapped[datetime]
    kind: Mapped[str]
    data: Mapped[str]


class ArtifactRow(Base):
    """A file of a study. The file itself lies at ``path``, not in the database."""

    __tablename__ = "energyopt_artifacts"

    study_id: Mapped[str] = mapped_column(ForeignKey("energyopt_studies.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]
    media_type: Mapped[str]
    sha256: Mapped[str]
    bytes: Mapped[int] = mapped_column(_BIG)


class StoredRunRow(Base):
    """A run that belongs to no study, such as a benchmark; ``document`` is its whole content as JSON."""

    __tablename__ = "energyopt_runs"
    __table_args__ = ({"sqlite_autoincrement": True},)

    sequence: Mapped[int] = mapped_column(_BIG, primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    created: Mapped[datetime]
    kind: Mapped[str] = mapped_column(index=True)
    name: Mapped[str]
    model: Mapped[str]
    valid: Mapped[bool]
    document: Mapped[str]

"""Tables of the service: who submitted a study, keys, what was done with them, and answers to repeated requests.

Imported by the migrations, so that these tables count wherever ``Base.metadata`` does.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from .tables import _BIG, Base, EventRow, TrialRow


class JobRow(Base):
    """A study that was submitted to the service; workers take these and no others.

    ``revision`` grows with every change that a person makes. ``progress`` is the last word of the worker, as JSON.
    """

    __tablename__ = "energyopt_jobs"

    study_id: Mapped[str] = mapped_column(ForeignKey("energyopt_studies.id", ondelete="CASCADE"), primary_key=True)
    tenant: Mapped[str | None] = mapped_column(index=True)
    submitted_by: Mapped[str | None]
    revision: Mapped[int]
    progress: Mapped[str | None]


class LabelRow(Base):
    """A label of a submitted study."""

    __tablename__ = "energyopt_labels"

    study_id: Mapped[str] = mapped_column(ForeignKey("energyopt_studies.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True, index=True)
    value: Mapped[str]


class IdempotencyRow(Base):
    """What a request with an Idempotency-Key made. ``owner`` is who sent it, ``digest`` that of the body."""

    __tablename__ = "energyopt_idempotency"

    owner: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    study_id: Mapped[str]
    created: Mapped[datetime]


class KeyRow(Base):
    """An API key: never the secret, only its SHA-256. ``scopes`` are words between spaces."""

    __tablename__ = "energyopt_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    digest: Mapped[str]
    scopes: Mapped[str]
    tenant: Mapped[str | None]
    created: Mapped[datetime]
    revoked: Mapped[datetime | None]


class AuditRow(Base):
    """One thing that somebody did, or was not allowed to do, through the service."""

    __tablename__ = "energyopt_audit"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(_BIG, primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    detail: Mapped[str]


class FrontRow(Base):
    """A trial on a Pareto front: ``x`` is its figure of ``benefit``, ``y`` that of ``latency``."""

    __tablename__ = "energyopt_fronts"

    study_id: Mapped[str] = mapped_column(ForeignKey("energyopt_studies.id", ondelete="CASCADE"), primary_key=True)
    benefit: Mapped[str] = mapped_column(primary_key=True)
    latency: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    x: Mapped[float]
    y: Mapped[float]


Index("ix_energyopt_trials_outcome", TrialRow.study_id, TrialRow.outcome, TrialRow.state)
for _figure in ("tokens_per_joule", "output_rate", "ttft_p90", "itl_p99", "tpot_p90"):
    Index(f"ix_energyopt_trials_{_figure}", TrialRow.study_id, getattr(TrialRow, _figure))
Index("ix_energyopt_events_of_study", EventRow.study_id, EventRow.id)

"""Tables of leases on trials and of the workers that hold them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from .tables import _BIG, Base


class LeadRow(Base):
    """A study whose queued trials are for workers while ``leader`` owns it.

    ``hardware`` is that of the first worker that took one; others of another kind get none. ``verifier`` is the worker
    of the final comparison.
    """

    __tablename__ = "energyopt_leads"

    study_id: Mapped[str] = mapped_column(ForeignKey("energyopt_studies.id", ondelete="CASCADE"), primary_key=True)
    leader: Mapped[str]
    hardware: Mapped[str | None]
    verifier: Mapped[str | None]


class LeaseRow(Base):
    """One attempt at one trial; gone when it has ended. A worker has one at a time."""

    __tablename__ = "energyopt_leases"
    __table_args__ = (UniqueConstraint("trial_id"), UniqueConstraint("worker"))

    id: Mapped[str] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(_BIG, ForeignKey("energyopt_trials.id", ondelete="CASCADE"))
    worker: Mapped[str]
    expires: Mapped[datetime]
    stage: Mapped[str]
    fraction: Mapped[float]


class DeviceLeaseRow(Base):
    """A device that a lease has for itself."""

    __tablename__ = "energyopt_lease_devices"

    host: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(primary_key=True)
    lease_id: Mapped[str] = mapped_column(ForeignKey("energyopt_leases.id", ondelete="CASCADE"), index=True)


class WorkerRow(Base):
    """A worker that asked for work, and when it was last heard of; ``devices`` is a JSON array."""

    __tablename__ = "energyopt_workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    hardware: Mapped[str]
    devices: Mapped[str]
    tenant: Mapped[str | None]
    seen: Mapped[datetime] = mapped_column(index=True)

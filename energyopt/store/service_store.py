"""Opens everything that the service keeps in one database, over one pool of connections."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from energyopt.core.clock import Clock, MonotonicClock

from .attached import SqlAttachedTrials
from .database import open_engine
from .energy_history import EnergyHistory
from .event_tail import EventTail
from .jobs import SqlJobStore
from .keys import SqlKeyStore
from .label_energy import LabelEnergy
from .leases import SqlLeaseStore
from .pages import SqlPages
from .repository import SqlStudyStore


@dataclass(frozen=True, slots=True)
class ServiceStore:
    """One database seen from every side; ``close`` closes its connections."""

    studies: SqlStudyStore
    jobs: SqlJobStore
    pages: SqlPages
    keys: SqlKeyStore
    tail: EventTail
    energy: EnergyHistory
    label_energy: LabelEnergy
    leases: SqlLeaseStore
    attached: SqlAttachedTrials
    name: str
    engine: Engine

    def close(self) -> None:
        self.engine.dispose()


def open_service_store(url: str, *, clock: Clock | None = None) -> ServiceStore:
    """Raises what ``database.open_store`` raises."""
    engine, name = open_engine(url)
    clock = clock or MonotonicClock()
    return ServiceStore(
        studies=SqlStudyStore(engine, clock, name),
        jobs=SqlJobStore(engine, clock, name),
        pages=SqlPages(engine, name),
        keys=SqlKeyStore(engine, clock, name),
        tail=EventTail(engine, name),
        energy=EnergyHistory(engine, name),
        label_energy=LabelEnergy(engine, name),
        leases=SqlLeaseStore(engine, clock, name),
        attached=SqlAttachedTrials(engine, clock, name),
        name=name,
        engine=engine,
    )

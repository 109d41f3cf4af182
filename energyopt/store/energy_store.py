"""Opens a database for energy over time: to write one host's, or to read anybody's."""

from __future__ import annotations

from energyopt.core.clock import Clock, MonotonicClock

from .database import open_engine
from .energy_history import EnergyHistory
from .energy_writer import Retention, SqlEnergyWriter


def open_energy_writer(
    url: str, host: str, *, clock: Clock | None = None, retention: Retention = Retention()
) -> SqlEnergyWriter:
    """A writer to the database at ``url``, which is created or migrated if need be; ``close`` ends it.

    ``host`` names this machine among those that share the database. Raises what ``database.open_store`` raises.
    """
    engine, name = open_engine(url)
    return SqlEnergyWriter(engine, clock or MonotonicClock(), name, host, retention=retention)


def open_energy_history(url: str) -> EnergyHistory:
    """A reader of the database at ``url``. Raises what ``database.open_store`` raises."""
    engine, name = open_engine(url)
    return EnergyHistory(engine, name)

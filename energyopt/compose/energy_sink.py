"""The agent's database. A module of its own, since SQLAlchemy and Alembic cost more memory than all of the sampling."""

from __future__ import annotations

import socket

from energyopt.core.clock import Clock
from energyopt.core.units import Seconds
from energyopt.store.energy_store import open_energy_writer
from energyopt.store.energy_writer import Retention, SqlEnergyWriter


def open_sink(db: str, clock: Clock, keep_seconds: Seconds, keep_minutes: Seconds) -> SqlEnergyWriter:
    """A writer of this host's energy to ``db``. Raises StoreError, ConfigError."""
    kept = Retention(seconds=round(keep_seconds), minutes=round(keep_minutes))
    return open_energy_writer(db, socket.gethostname(), clock=clock, retention=kept)

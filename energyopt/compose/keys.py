"""Keys of the service and its database, from the command line of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from energyopt.core.jobs import KeyRecord, Scope
from energyopt.store.backup import Progress, backup_file
from energyopt.store.database import default_url
from energyopt.store.service_store import ServiceStore, open_service_store

_ACTOR = "command line"


def create_key(db: str | None, name: str, scopes: Sequence[Scope], tenant: str | None) -> tuple[KeyRecord, str]:
    """The key and its text, to be shown once. Raises ConfigError, StoreError."""
    with _opened(db) as store:
        key, secret = store.keys.create(name, scopes, tenant)
        store.keys.note(_ACTOR, "create key", f"key:{key.id}", " ".join(key.scopes))
        return key, secret


def list_keys(db: str | None) -> list[KeyRecord]:
    with _opened(db) as store:
        return store.keys.keys()


def revoke_key(db: str | None, key_id: str) -> KeyRecord:
    """Raises NotFoundError."""
    with _opened(db) as store:
        revoked = store.keys.revoke(key_id)
        store.keys.note(_ACTOR, "revoke", f"key:{key_id}")
        return revoked


def upgrade_database(db: str | None) -> str:
    """Bring the database to this version and return what it is called. Raises StoreError if it is newer."""
    with _opened(db) as store:
        return store.name


def backup_database(db: str | None, target: Path, on_progress: Progress) -> Path:
    """Copy the database file to ``target``. Raises ConfigError, StoreError."""
    return backup_file(default_url(os.environ) if db is None else db, target, on_progress)


@contextmanager
def _opened(db: str | None) -> Iterator[ServiceStore]:
    store = open_service_store(default_url(os.environ) if db is None else db)
    try:
        yield store
    finally:
        store.close()

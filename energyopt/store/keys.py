"""API keys and the audit log in SQL.

A secret has 256 random bits, so nobody finds it from its SHA-256 by trying: the slow hashes that passwords need would
only make every request slow. What is shown once is ``eo_ID_SECRET``; the id finds the row, the secret is compared in
constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.jobs import AuditRecord, KeyRecord, Scope

from .codec import bounded, clean
from .refusal import session_on
from .service_tables import AuditRow, KeyRow

TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_KEY = re.compile(r"eo_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_MAX_DETAIL = 500


class SqlKeyStore:
    """Keys and what was done with them. Every method is one transaction; raises StoreError."""

    def __init__(self, engine: Engine, clock: Clock, name: str) -> None:
        self._readers = engine
        self._writers = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._clock, self.name = clock, name

    def create(self, name: str, scopes: Sequence[Scope], tenant: str | None = None) -> tuple[KeyRecord, str]:
        """A new key and the text to hand out, which nobody can show again. Raises ConfigError."""
        if not scopes:
            raise ConfigError(f"A key needs a scope: {', '.join(Scope)}.")
        if tenant is not None and not TENANT.fullmatch(tenant):
            raise ConfigError(f"tenant = {tenant[:60]!r} is not allowed: lower-case letters, digits, '.', '_' and '-'.")
        if not name.strip() or len(name) > 100:
            raise ConfigError("A key needs a name of at most 100 characters, by which people know it.")
        secret = secrets.token_urlsafe(32)
        row = KeyRow(
            id=secrets.token_hex(6),
            name=clean(name),
            digest=_digest(secret),
            scopes=" ".join(dict.fromkeys(scopes)),
            tenant=tenant,
            created=self._clock.utc(),
        )
        with self._session(self._writers) as session:
            session.add(row)
            session.flush()
            return _record(row), f"eo_{row.id}_{secret}"

    def find(self, text: str) -> KeyRecord | None:
        """The key that ``text`` is; None for a wrong or revoked one."""
        match = _KEY.fullmatch(text)
        if match is None:
            return None
        with self._session(self._readers) as session:
            row = session.get(KeyRow, match[1])
            known = row.digest if row is not None else ""
            right = hmac.compare_digest(_digest(match[2]), known)
            return _record(row) if row is not None and right and row.revoked is None else None

    def keys(self) -> list[KeyRecord]:
        """All, revoked ones too, in the order of their making."""
        with self._session(self._readers) as session:
            return [_record(row) for row in session.scalars(select(KeyRow).order_by(KeyRow.created, KeyRow.id))]

    def any_active(self) -> bool:
        with self._session(self._readers) as session:
            return bool(session.scalar(select(func.count()).select_from(KeyRow).where(KeyRow.revoked.is_(None))))

    def revoke(self, key_id: str) -> KeyRecord:
        """No request with the key is answered from now on; revoking twice changes nothing. Raises NotFoundError."""
        with self._session(self._writers) as session:
            row = session.get(KeyRow, clean(key_id))
            if row is None:
                raise NotFoundError(f"There is no key {key_id[:60]!r}.")
            row.revoked = row.revoked or self._clock.utc()
            session.flush()
            return _record(row)

    def note(self, actor: str, action: str, target: str, detail: str = "") -> None:
        """Add to the audit log."""
        texts = {"actor": actor, "action": action, "target": target, "detail": detail}
        held = {name: clean(text)[:_MAX_DETAIL] for name, text in texts.items()}
        with self._session(self._writers) as session:
            session.add(AuditRow(at=self._clock.utc(), **held))

    def audit(self, *, before: int | None = None, limit: int = 100) -> list[AuditRecord]:
        """Newest first."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(bounded(limit))
        if before is not None:
            query = query.where(AuditRow.id < bounded(before, 2**63 - 1))
        with self._session(self._readers) as session:
            return [
                AuditRecord(id=r.id, at=r.at, actor=r.actor, action=r.action, target=r.target, detail=r.detail)
                for r in session.scalars(query)
            ]

    def _session(self, engine: Engine) -> AbstractContextManager[Session]:
        return session_on(engine, self.name, expire_on_commit=False)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _record(row: KeyRow) -> KeyRecord:
    scopes = tuple(Scope(word) for word in row.scopes.split())
    return KeyRecord(
        id=row.id, name=row.name, scopes=scopes, tenant=row.tenant, created=row.created, revoked=row.revoked
    )

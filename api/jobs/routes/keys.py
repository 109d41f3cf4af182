"""``/v1/keys`` and ``/v1/audit``: who may do what, and who did."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from energyopt.core.errors import ConfigError
from energyopt.core.jobs import AuditRecord, KeyRecord, Scope
from energyopt.core.results import Result

from ..access import note
from ..bodies import KeyBody, checked, read_object
from ..documents import answer, make_cursor, read_cursor
from ..door import Admin, Caller, ServicesDep
from ..openapi import KEY
from ..services import JobServices

router = APIRouter()


class NewKey(Result):
    """``secret`` is shown here and never again."""

    key: KeyRecord
    secret: str


class KeyList(Result):
    items: tuple[KeyRecord, ...]


class AuditPage(Result):
    items: tuple[AuditRecord, ...]
    next: str | None


@router.get("/v1/keys", response_model=KeyList)
def list_keys(services: ServicesDep, caller: Admin) -> Response:
    """Every key, revoked ones too; never a secret."""
    return answer(KeyList(items=tuple(services.keys.keys())))


@router.post("/v1/keys", status_code=201, response_model=NewKey, openapi_extra=KEY)
async def create_key(request: Request, services: ServicesDep, caller: Admin) -> Response:
    """A new key. From the first one on, nobody is answered without."""
    body = checked(await read_object(request), KeyBody)
    return await run_in_threadpool(_create, services, caller, body)


@router.delete("/v1/keys/{key_id}", response_model=KeyRecord)
def revoke_key(key_id: str, services: ServicesDep, caller: Admin) -> Response:
    """Revoke a key at once."""
    revoked = services.keys.revoke(key_id)
    note(services, caller, "revoke", f"key:{revoked.id}")
    return answer(revoked)


@router.get("/v1/audit", response_model=AuditPage)
def audit(
    services: ServicesDep,
    caller: Admin,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """What was done, newest first."""
    before = None if cursor is None else int(read_cursor("audit", cursor)[0] or 0)
    entries = services.keys.audit(before=before, limit=limit + 1)
    more = make_cursor("audit", [entries[limit - 1].id]) if len(entries) > limit else None
    return answer(AuditPage(items=tuple(entries[:limit]), next=more))


def _create(services: JobServices, caller: Caller, body: KeyBody) -> Response:
    known = {scope.value: scope for scope in Scope}
    unknown = [word for word in body.scopes if word not in known]
    if unknown:
        raise ConfigError(f"scope = {unknown[0][:40]!r} is not known: allowed are {', '.join(known)}.")
    key, secret = services.keys.create(body.name, [known[word] for word in body.scopes], body.tenant)
    note(services, caller, "create key", f"key:{key.id}", " ".join(body.scopes))
    return answer(NewKey(key=key, secret=secret), 201)

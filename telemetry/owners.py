"""Whose a request is: its tenant and its session, by request id, in bounded memory and with a bounded set of labels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

NOBODY = "nobody"
"""Label of energy that no tenant answers for."""
ANONYMOUS = "anonymous"
"""Label of requests that named no tenant."""
OTHER = "other"
"""Label of tenants that are not among the known ones: labels must not grow with what clients send."""
RESERVED = (NOBODY, ANONYMOUS, OTHER)

MAX_REQUESTS = 16_384
MAX_SESSION = 256
"""Characters of a session's name that count."""


@dataclass(frozen=True, slots=True)
class Owner:
    """``tenant`` is a label of the bounded set; ``session`` is the client's word, if it gave one."""

    tenant: str = ANONYMOUS
    session: str | None = None


UNKNOWN = Owner()


class OwnerBook:
    """Remembers the owners of the newest requests; ``known`` are the tenants that get labels of their own."""

    def __init__(self, known: Iterable[str] = (), limit: int = MAX_REQUESTS) -> None:
        self._known = frozenset(known)
        self._limit = limit
        self._owners: OrderedDict[str, Owner] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def note(self, request_id: str, tenant: str | None, session: str | None) -> None:
        """Remember whose a request is. Call before its first step."""
        label = ANONYMOUS if tenant is None else tenant if tenant in self._known else OTHER
        self._owners[request_id] = Owner(label, session[:MAX_SESSION] if session else None)
        self._owners.move_to_end(request_id)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    def of(self, request_id: str) -> Owner:
        """The owner as noted; UNKNOWN if it never was or was long ago."""
        return self._owners.get(request_id, UNKNOWN)

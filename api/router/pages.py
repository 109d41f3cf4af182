"""What the router says of itself: the merged list of models, the state of its backends, and switching them."""

from __future__ import annotations

from pydantic_core import from_json

from energyopt.core.errors import NotFoundError, RequestError

from .backend import Backend
from .fleet import Fleet


async def merged_models(fleet: Fleet) -> dict[str, object]:
    """Every model of every backend that is up, once, as the first backend that lists it describes it.

    Waits until each was asked once, which a probe's own patience limits: a list that lacks some is taken for whole.
    """
    merged: dict[str, object] = {}
    for backend in fleet.backends:
        await backend.probed.wait()
        if backend.health.up:
            for name, entry in (backend.models or {}).items():
                merged.setdefault(name, entry)
    return {"object": "list", "data": list(merged.values())}


def backends_page(fleet: Fleet) -> dict[str, object]:
    """Each backend as the router sees it; ``prefixes`` says where its cached prefixes are known from."""
    return {
        "draining": fleet.draining,
        "queued": fleet.queued,
        "backends": [_shown(fleet, backend) for backend in fleet.backends],
    }


def _shown(fleet: Fleet, backend: Backend) -> dict[str, object]:
    health, now = backend.health, fleet.now
    state = "draining" if health.draining else "down" if not health.up else "ejected" if health.out(now) else "up"
    return {
        "name": backend.name,
        "url": backend.config.url,
        "state": state,
        "running": backend.running,
        "max_concurrency": backend.config.max_concurrency,
        "models": None if backend.models is None else list(backend.models),
        "prefixes": "events" if backend.name in fleet.desk.fed else "requests",
        "ejections": health.ejections,
        "trouble": backend.trouble,
    }


def switch(fleet: Fleet, body: bytes, *, drain: bool) -> dict[str, object]:
    """Drain a backend (``{"backend": NAME}``) or the router (no body), or let it take requests again.

    Running requests go on. Raises RequestError, NotFoundError.
    """
    name = _wanted(body)
    if name is None:
        fleet.draining = drain
    else:
        backend = next((one for one in fleet.backends if one.name == name), None)
        if backend is None:
            known = ", ".join(one.name for one in fleet.backends)
            raise NotFoundError(f"There is no backend {name[:100]!r}: here are {known}.")
        backend.health.draining = drain
    if not drain:
        fleet.changed()
    return backends_page(fleet)


def _wanted(body: bytes) -> str | None:
    if not body.strip():
        return None
    try:
        document = from_json(body)
    except ValueError as error:
        raise RequestError(f"The body is no JSON: {error}.") from error
    if not isinstance(document, dict) or set(document) - {"backend"}:
        raise RequestError('The body is not understood: send {"backend": NAME}, or nothing for the router itself.')
    name = document.get("backend")
    if name is not None and not isinstance(name, str):
        raise RequestError("backend must be a name.", param="backend")
    return name

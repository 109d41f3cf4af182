"""The double as an ASGI application: a token or a password at the door, and a list of what was written."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as NoRoute

from .alerts import Alerts
from .boards import Boards
from .folders import Folders
from .people import People, Permissions
from .plugins import CORE, Plugins
from .replies import Json, refuse
from .sources import Sources
from .state import State

TOKEN = "glsa_fake"
_PASSWORD = base64.b64encode(b"admin:admin").decode()
_DOORS = (f"Bearer {TOKEN}", f"Basic {_PASSWORD}")


class FakeGrafana:
    """A server's state and the ``app`` that serves it, for tests and demonstrations.

    ``writes`` lists method and path of every request that changed something. ``plugins`` are what is installed beside
    the core ones. It checks tokens, versions, folders and required fields as strictly as the real one, evaluates no
    query and draws nothing.
    """

    def __init__(self, *, version: str = "12.4.0", plugins: tuple[str, ...] = ()) -> None:
        self.state = State(version, {name: {"id": name, "name": name} for name in (*CORE, *plugins)})
        self.writes: list[tuple[str, str]] = []
        self.app = FastAPI()
        self.app.middleware("http")(self._guard)
        self.app.add_exception_handler(NoRoute, _nothing_there)
        self.app.include_router(self._routes())

    @property
    def boards(self) -> dict[str, Json]:
        return self.state.boards

    @property
    def folders(self) -> dict[str, Json]:
        return self.state.folders

    @property
    def sources(self) -> dict[str, Json]:
        return self.state.sources

    @property
    def groups(self) -> dict[tuple[str, str], Json]:
        return self.state.groups

    def edit(self, uid: str, **changes: object) -> None:
        """Change a board as a person does in the browser: a new version, without a message."""
        entry = self.boards[uid]
        entry["dashboard"].update(changes, version=entry["dashboard"]["version"] + 1)
        entry["message"] = ""
        entry["history"].append({key: entry[key] for key in ("dashboard", "folder", "message")})

    def _routes(self) -> APIRouter:
        router = APIRouter(prefix="/api")
        router.add_api_route("/frontend/settings", lambda: {"buildInfo": {"version": self.state.version}})
        for part in (Permissions, Folders, Sources, Boards, Alerts, Plugins, People):
            router.include_router(part(self.state).routes())
        return router

    async def _guard(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.headers.get("authorization") not in _DOORS:
            return refuse(401, "Invalid API key", messageId="api-key.invalid")
        reply = await go_on(request)
        if request.method != "GET" and reply.status_code < 300:
            self.writes.append((request.method, request.url.path))
        return reply


async def _nothing_there(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException | NoRoute) else 404
    return refuse(status, "Not found")

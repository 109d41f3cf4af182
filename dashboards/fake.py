"""A Grafana in memory that speaks the part of its HTTP API that provisioning uses: for tests and demonstrations.

As strict as the real one about tokens, versions, folders and required fields. An ASGI application.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from .catalog import UID

TOKEN = "glsa_fake"
Json = dict[str, Any]
RULE_FIELDS = ("title", "ruleGroup", "folderUID", "condition", "data", "noDataState", "execErrState", "for")


class FakeGrafana:
    """The state of the server; ``app`` serves it. ``writes`` counts what was changed, ``plugins`` is what it has."""

    def __init__(self, *, version: str = "12.4.0", plugins: tuple[str, ...] = ()) -> None:
        self.version = version
        self.plugins = {"prometheus", "grafana-postgresql-datasource", *plugins}
        self.folders: dict[str, Json] = {}
        self.boards: dict[str, Json] = {}
        self.sources: dict[str, Json] = {}
        self.groups: dict[tuple[str, str], Json] = {}
        self.writes: list[tuple[str, str]] = []
        self._ids = itertools.count(1)
        self.app = FastAPI()
        self.app.middleware("http")(self._guard)
        router = APIRouter(prefix="/api")
        for method, path, endpoint in self._routes():
            router.add_api_route(path, endpoint, methods=[method], response_model=None)
        self.app.include_router(router)

    def edit(self, uid: str, **changes: object) -> None:
        """Change a board as a person does in the browser: a new version, without a message."""
        entry = self.boards[uid]
        entry["dashboard"].update(changes, version=entry["dashboard"]["version"] + 1)
        entry["message"] = ""

    def _routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        return [
            ("GET", "/frontend/settings", lambda: {"buildInfo": {"version": self.version}}),
            ("GET", "/plugins/{plugin}/settings", self._plugin),
            ("GET", "/folders/{uid}", lambda uid: _found(self.folders.get(uid), "folder not found")),
            ("POST", "/folders", self._add_folder),
            ("GET", "/datasources/uid/{uid}", self._source),
            ("POST", "/datasources", self._add_source),
            ("PUT", "/datasources/uid/{uid}", self._put_source),
            ("GET", "/dashboards/uid/{uid}", self._board),
            ("GET", "/dashboards/uid/{uid}/versions", self._versions),
            ("POST", "/dashboards/db", self._save),
            ("GET", "/v1/provisioning/folder/{folder}/rule-groups/{group}", self._group),
            ("PUT", "/v1/provisioning/folder/{folder}/rule-groups/{group}", self._put_group),
        ]

    async def _guard(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _refuse(401, "Invalid API key", messageId="api-key.invalid")
        reply = await go_on(request)
        if request.method != "GET" and reply.status_code < 300:
            self.writes.append((request.method, request.url.path))
        return reply

    def _plugin(self, plugin: str) -> Json | JSONResponse:
        return _found(
            {"id": plugin} if plugin in self.plugins else None, "Plugin not found, no installed plugin with that id"
        )

    async def _add_folder(self, request: Request) -> Json | JSONResponse:
        body = await request.json()
        if not body.get("title"):
            return _refuse(400, "folder title cannot be empty")
        if body["uid"] in self.folders:
            return _refuse(412, "the folder has been changed by someone else", status="version-mismatch")
        self.folders[body["uid"]] = {"uid": body["uid"], "title": body["title"], "id": next(self._ids), "version": 1}
        return self.folders[body["uid"]]

    def _source(self, uid: str) -> Json | JSONResponse:
        found = self.sources.get(uid)
        return _found(None if found is None else _public(found), "Data source not found")

    async def _add_source(self, request: Request) -> Json | JSONResponse:
        body = await request.json()
        if any(found["name"] == body["name"] for found in self.sources.values()):
            return _refuse(409, "data source with the same name already exists")
        made = {"orgId": 1, "version": 1, "readOnly": False, **body, "id": next(self._ids)}
        self.sources[body["uid"]] = made
        return {"message": "Datasource added", "datasource": _public(made)}

    async def _put_source(self, uid: str, request: Request) -> Json | JSONResponse:
        if uid not in self.sources:
            return _refuse(404, "Data source not found")
        found = self.sources[uid]
        if found["readOnly"]:
            return _refuse(403, "Cannot update read-only data source")
        body = await request.json()
        secrets = {**found.get("secureJsonData", {}), **body.get("secureJsonData", {})}
        found.update(body, version=found["version"] + 1, secureJsonData=secrets)
        return {"message": "Datasource updated", "datasource": _public(found)}

    def _board(self, uid: str) -> Json | JSONResponse:
        entry = self.boards.get(uid)
        if entry is None:
            return _refuse(404, "Dashboard not found", status="not-found")
        return {"dashboard": entry["dashboard"], "meta": {"folderUid": entry["folder"], "provisioned": False}}

    def _versions(self, uid: str) -> Json | JSONResponse:
        if uid not in self.boards:
            return _refuse(404, "Dashboard not found")
        entry = self.boards[uid]
        return {
            "continueToken": "",
            "versions": [{"version": entry["dashboard"]["version"], "message": entry["message"]}],
        }

    async def _save(self, request: Request) -> Json | JSONResponse:
        body = await request.json()
        board, folder = body.get("dashboard"), body.get("folderUid") or ""
        if not isinstance(board, dict) or not board.get("title"):
            return _refuse(400, "Dashboard title cannot be empty", status="empty-name")
        if folder and folder not in self.folders:
            return _refuse(400, "folder not found", status="not-found")
        uid = board.get("uid") or ""
        if not UID.fullmatch(uid):
            return _refuse(400, "uid contains illegal characters")
        current = self.boards.get(uid)
        version = current["dashboard"]["version"] if current else 0
        if current and not body.get("overwrite") and board.get("version") != version:
            return _refuse(412, "The dashboard has been changed by someone else", status="version-mismatch")
        number = current["dashboard"]["id"] if current else next(self._ids)
        saved = {**copy.deepcopy(board), "id": number, "version": version + 1}
        self.boards[uid] = {"dashboard": saved, "folder": folder, "message": body.get("message") or ""}
        return {"id": number, "uid": uid, "status": "success", "version": version + 1}

    def _group(self, folder: str, group: str) -> Json | JSONResponse:
        return _found(self.groups.get((folder, group)), "rule group does not exist")

    async def _put_group(self, folder: str, group: str, request: Request) -> Json | JSONResponse:
        body = await request.json()
        if folder not in self.folders:
            return _refuse(400, "folder does not exist")
        for rule in body["rules"]:
            missing = [name for name in RULE_FIELDS if rule.get(name) in (None, "")]
            if missing:
                return _refuse(400, f"invalid alert rule: missing {', '.join(missing)}")
        rules = [{**rule, "id": next(self._ids), "provenance": "api"} for rule in body["rules"]]
        self.groups[folder, group] = {**body, "folderUid": folder, "rules": rules}
        return self.groups[folder, group]


def _found(thing: Json | None, otherwise: str) -> Json | JSONResponse:
    return _refuse(404, otherwise) if thing is None else thing


def _public(source: Json) -> Json:
    """Secrets are kept and never told; only their names are."""
    shown = {key: value for key, value in source.items() if key != "secureJsonData"}
    return {**shown, "secureJsonFields": dict.fromkeys(source.get("secureJsonData") or {}, True)}


def _refuse(code: int, message: str, /, **more: str) -> JSONResponse:
    return JSONResponse({"message": message, **more}, code)

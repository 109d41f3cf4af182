"""Boards: saved under a version, kept with their history, found by uid, title or tag."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query, Request

from ..catalog import UID
from .replies import Json, Reply, found, mount, refuse
from .state import State, fresh_uid, slug

Words = Annotated[list[str], Query()]
MISSING = "Dashboard not found"


class Boards:
    """Paths under ``/dashboards``, and ``/search``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> APIRouter:
        return mount(
            "",
            [
                ("POST", "/dashboards/db", self.save),
                ("GET", "/dashboards/uid/{uid}", self.one),
                ("DELETE", "/dashboards/uid/{uid}", self.delete),
                ("GET", "/dashboards/uid/{uid}/versions", self.versions),
                ("GET", "/dashboards/uid/{uid}/versions/{number}", self.version),
                ("POST", "/dashboards/uid/{uid}/restore", self.restore),
                ("GET", "/dashboards/tags", self.tags),
                ("GET", "/dashboards/home", self.home),
                ("GET", "/search", self.search),
            ],
        )

    async def save(self, request: Request) -> Reply:
        return _save(self._state, await request.json())

    def one(self, uid: str) -> Reply:
        entry = self._state.boards.get(uid)
        return refuse(404, MISSING, status="not-found") if entry is None else _shown(self._state, entry)

    def delete(self, uid: str) -> Reply:
        entry = self._state.boards.pop(uid, None)
        if entry is None:
            return refuse(404, MISSING, status="not-found")
        title = entry["dashboard"]["title"]
        return {"message": f"Dashboard {title} deleted", "title": title, "uid": uid}

    def versions(self, uid: str, limit: int = 1000) -> Reply:
        if uid not in self._state.boards:
            return refuse(404, MISSING)
        newest_first = self._state.boards[uid]["history"][::-1][:limit]
        return {"continueToken": "", "versions": [_version(entry) for entry in newest_first]}

    def version(self, uid: str, number: int) -> Reply:
        entry = _at(self._state, uid, number)
        return found(None if entry is None else {**_version(entry), "data": entry["dashboard"]}, MISSING)

    async def restore(self, uid: str, request: Request) -> Reply:
        entry = _at(self._state, uid, (await request.json()).get("version"))
        if entry is None:
            return refuse(404, "Dashboard version not found")
        body = {"dashboard": entry["dashboard"], "folderUid": self._state.boards[uid]["folder"], "overwrite": True}
        return _save(self._state, body)

    def tags(self) -> Reply:
        counts = Counter(tag for entry in self._state.boards.values() for tag in entry["dashboard"].get("tags", []))
        return [{"term": tag, "count": count} for tag, count in sorted(counts.items())]

    def home(self) -> Reply:
        wanted = self._state.preferences.get("homeDashboardId")
        chosen = next(
            (one["dashboard"] for one in self._state.boards.values() if one["dashboard"]["id"] == wanted), None
        )
        return {"meta": {"isHome": True}} if chosen is None else {"redirectUri": _link(chosen)}

    def search(self, tag: Words = [], type: str = "", query: str = "") -> Reply:  # noqa: B006 - a declaration, never changed
        boards = [
            _hit(entry) for entry in self._state.boards.values() if set(tag) <= set(entry["dashboard"].get("tags", []))
        ]
        folders = [{**folder, "type": "dash-folder"} for folder in self._state.folders.values() if not tag]
        hits = [*(boards if type != "dash-folder" else []), *(folders if type != "dash-db" else [])]
        return [hit for hit in hits if query.lower() in hit["title"].lower()]


def _save(state: State, body: Json) -> Reply:
    board, folder = body.get("dashboard"), _folder(state, body)
    if not isinstance(board, dict) or not board.get("title"):
        return refuse(400, "Dashboard title cannot be empty", status="empty-name")
    if folder and folder not in state.folders:
        return refuse(400, "folder not found", status="not-found")
    uid = board.get("uid") or fresh_uid()
    if not UID.fullmatch(uid):
        return refuse(400, "uid contains illegal characters")
    current = state.boards.get(uid)
    version = current["dashboard"]["version"] if current else 0
    if current and not body.get("overwrite") and board.get("version") != version:
        return refuse(412, "The dashboard has been changed by someone else", status="version-mismatch")
    number = current["dashboard"]["id"] if current else state.number()
    saved = {**copy.deepcopy(board), "uid": uid, "id": number, "version": version + 1}
    entry: Json = {"dashboard": saved, "folder": folder, "message": body.get("message") or ""}
    state.boards[uid] = {**entry, "history": [*(current["history"] if current else []), copy.deepcopy(entry)]}
    told = {"id": number, "uid": uid, "url": _link(saved), "slug": slug(saved["title"]), "folderUid": folder}
    return {**told, "status": "success", "version": version + 1}


def _folder(state: State, body: Json) -> str:
    """The folder's uid; older callers send its number, in the body or in the ``meta`` they once read."""
    if body.get("folderUid"):
        return str(body["folderUid"])
    number = body.get("folderId") or (body.get("meta") or {}).get("folderId")
    return next((uid for uid, folder in state.folders.items() if number and folder["id"] == number), "")


def _at(state: State, uid: str, number: object) -> Json | None:
    history = state.boards[uid]["history"] if uid in state.boards else []
    return next((entry for entry in history if entry["dashboard"]["version"] == number), None)


def _shown(state: State, entry: Json) -> Json:
    board, folder = entry["dashboard"], state.folders.get(entry["folder"], {})
    meta = {
        "folderUid": entry["folder"],
        "folderId": folder.get("id", 0),
        "folderTitle": folder.get("title", "General"),
    }
    return {
        "dashboard": board,
        "meta": {**meta, "version": board["version"], "url": _link(board), "provisioned": False},
    }


def _version(entry: Json) -> Json:
    board = entry["dashboard"]
    return {"uid": board["uid"], "dashboardId": board["id"], "version": board["version"], "message": entry["message"]}


def _hit(entry: Json) -> Json:
    board = entry["dashboard"]
    told = {"id": board["id"], "uid": board["uid"], "title": board["title"], "tags": board.get("tags", [])}
    return {**told, "type": "dash-db", "folderUid": entry["folder"], "url": _link(board)}


def _link(board: Json) -> str:
    return f"/d/{board['uid']}/{slug(board['title'])}"

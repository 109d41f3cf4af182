"""Folders: made, renamed under a version, moved, deleted with what they hold."""

from __future__ import annotations

from fastapi import APIRouter, Request

from .replies import Json, Reply, found, mount, refuse
from .state import State, fresh_uid, slug

CHANGED = "the folder has been changed by someone else"


class Folders:
    """Paths under ``/folders``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> APIRouter:
        return mount(
            "/folders",
            [
                ("GET", "", self.every),
                ("POST", "", self.add),
                ("GET", "/id/{number}", self.by_number),
                ("GET", "/{uid}", self.one),
                ("PUT", "/{uid}", self.rename),
                ("POST", "/{uid}/move", self.move),
                ("DELETE", "/{uid}", self.delete),
            ],
        )

    def every(self, parentUid: str | None = None) -> Reply:
        return [
            {key: folder[key] for key in ("id", "uid", "title")}
            for folder in self._state.folders.values()
            if folder.get("parentUid") == parentUid
        ]

    async def add(self, request: Request) -> Reply:
        body = await request.json()
        title, uid, parent = body.get("title"), body.get("uid") or fresh_uid(), body.get("parentUid")
        if not title:
            return refuse(400, "folder title cannot be empty")
        if uid in self._state.folders:
            return refuse(412, CHANGED, status="version-mismatch")
        if parent and parent not in self._state.folders:
            return refuse(404, "folder not found")
        self._state.folders[uid] = _made(self._state.number(), uid, title, parent)
        return self._state.folders[uid]

    def by_number(self, number: int) -> Reply:
        return found(
            next((one for one in self._state.folders.values() if one["id"] == number), None), "folder not found"
        )

    def one(self, uid: str) -> Reply:
        return found(self._state.folders.get(uid), "folder not found", status="not-found")

    async def rename(self, uid: str, request: Request) -> Reply:
        body = await request.json()
        folder = self._state.folders.get(uid)
        if folder is None:
            return refuse(404, "folder not found", status="not-found")
        if not body.get("overwrite") and body.get("version") != folder["version"]:
            return refuse(412, CHANGED, status="version-mismatch")
        folder.update(title=body.get("title", folder["title"]), version=folder["version"] + 1)
        return folder

    async def move(self, uid: str, request: Request) -> Reply:
        parent = (await request.json()).get("parentUid")
        if uid not in self._state.folders or (parent and parent not in self._state.folders):
            return refuse(404, "folder not found", status="not-found")
        self._state.folders[uid]["parentUid"] = parent
        return self._state.folders[uid]

    def delete(self, uid: str, forceDeleteRules: bool = False) -> Reply:
        return _delete(self._state, uid, force=forceDeleteRules)


def _made(number: int, uid: str, title: str, parent: str | None) -> Json:
    folder = {"id": number, "uid": uid, "title": title, "url": f"/dashboards/f/{uid}/{slug(title)}", "version": 1}
    return {**folder, "parentUid": parent} if parent else folder


def _delete(state: State, uid: str, *, force: bool) -> Reply:
    if uid not in state.folders:
        return refuse(404, "folder not found")
    held = [rule for rule, body in state.rules.items() if body["folderUID"] == uid]
    if held and not force:
        return refuse(400, "folder cannot be deleted: folder is not empty")
    folder = state.folders.pop(uid)
    for rule in held:
        del state.rules[rule]
    for board in [name for name, entry in state.boards.items() if entry["folder"] == uid]:
        del state.boards[board]
    return {"message": f"Folder {folder['title']} deleted", "title": folder["title"], "id": folder["id"]}

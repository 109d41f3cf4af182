"""Data sources: addressed by uid or name; secrets go in and never come out."""

from __future__ import annotations

from fastapi import APIRouter, Request

from .replies import Json, Reply, mount, refuse
from .state import State, fresh_uid

MISSING = "Data source not found"


class Sources:
    """Paths under ``/datasources``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> APIRouter:
        return mount(
            "/datasources",
            [
                ("GET", "", self.every),
                ("POST", "", self.add),
                ("GET", "/uid/{uid}", self.one),
                ("GET", "/name/{name}", self.by_name),
                ("GET", "/id/{name}", self.number_of),
                ("PUT", "/uid/{uid}", self.change),
                ("PUT", "/{number}", self.change_by_number),
                ("DELETE", "/uid/{uid}", self.delete),
                ("DELETE", "/name/{name}", self.delete_by_name),
                ("DELETE", "/{number}", self.delete_by_number),
                ("GET", "/uid/{uid}/health", self.health),
            ],
        )

    def every(self) -> Reply:
        return [_public(source) for source in sorted(self._state.sources.values(), key=lambda one: str(one["name"]))]

    async def add(self, request: Request) -> Reply:
        body = await request.json()
        if not body.get("name") or not body.get("type"):
            return refuse(400, "bad request data")
        if _named(self._state, body["name"]) or body.get("uid") in self._state.sources:
            return refuse(409, "data source with the same name already exists")
        uid = body.get("uid") or fresh_uid()
        base = {"orgId": 1, "access": "proxy", "isDefault": False, "jsonData": {}, "version": 1, "readOnly": False}
        self._state.sources[uid] = {**base, **body, "id": self._state.number(), "uid": uid}
        return _changed("added", self._state.sources[uid])

    def one(self, uid: str) -> Reply:
        return _told(self._state.sources.get(uid))

    def by_name(self, name: str) -> Reply:
        return _told(_named(self._state, name))

    def number_of(self, name: str) -> Reply:
        source = _named(self._state, name)
        return refuse(404, MISSING) if source is None else {"id": source["id"]}

    async def change(self, uid: str, request: Request) -> Reply:
        return _change(self._state.sources.get(uid), await request.json())

    async def change_by_number(self, number: int, request: Request) -> Reply:
        return _change(_numbered(self._state, number), await request.json())

    def delete(self, uid: str) -> Reply:
        return _delete(self._state, self._state.sources.get(uid), tell_id=True)

    def delete_by_name(self, name: str) -> Reply:
        return _delete(self._state, _named(self._state, name), tell_id=True)

    def delete_by_number(self, number: int) -> Reply:
        return _delete(self._state, _numbered(self._state, number), tell_id=False)

    def health(self, uid: str) -> Reply:
        return (
            refuse(404, MISSING)
            if uid not in self._state.sources
            else {"status": "OK", "message": "Not asked: a double"}
        )


def _change(source: Json | None, body: Json) -> Reply:
    if source is None:
        return refuse(404, MISSING)
    if source["readOnly"]:
        return refuse(403, "Cannot update read-only data source")
    secrets = {**source.get("secureJsonData", {}), **body.get("secureJsonData", {})}
    keep = {"id": source["id"], "uid": body.get("uid") or source["uid"], "version": source["version"] + 1}
    source.update(body)
    source.update(keep, secureJsonData=secrets)
    return _changed("updated", source)


def _delete(state: State, source: Json | None, *, tell_id: bool) -> Reply:
    if source is None:
        return refuse(404, MISSING)
    del state.sources[source["uid"]]
    return {"message": "Data source deleted", **({"id": source["id"]} if tell_id else {})}


def _changed(how: str, source: Json) -> Json:
    told = {"id": source["id"], "name": source["name"], "message": f"Datasource {how}"}
    return {**told, "datasource": _public(source)}


def _told(source: Json | None) -> Reply:
    return refuse(404, MISSING) if source is None else _public(source)


def _named(state: State, name: object) -> Json | None:
    return next((source for source in state.sources.values() if source["name"] == name), None)


def _numbered(state: State, number: int) -> Json | None:
    return next((source for source in state.sources.values() if source["id"] == number), None)


def _public(source: Json) -> Json:
    """Secrets are kept and never told; only their names are."""
    shown = {key: value for key, value in source.items() if key != "secureJsonData"}
    return {**shown, "secureJsonFields": dict.fromkeys(source.get("secureJsonData") or {}, True)}

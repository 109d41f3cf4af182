"""Alerting: rule groups as a whole, single rules, mute timings, and who may change what was provisioned."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from .replies import Reply, found, mount, refuse
from .state import State, fresh_uid

FIELDS = ("title", "ruleGroup", "folderUID", "condition", "data", "noDataState", "execErrState", "for")


class Alerts:
    """Paths under ``/v1/provisioning``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> APIRouter:
        return mount(
            "/v1/provisioning",
            [
                ("GET", "/folder/{folder}/rule-groups/{group}", self.one_group),
                ("PUT", "/folder/{folder}/rule-groups/{group}", self.replace_group),
                ("GET", "/alert-rules", self.every),
                ("POST", "/alert-rules", self.add),
                ("GET", "/alert-rules/{uid}", self.one),
                ("PUT", "/alert-rules/{uid}", self.change),
                ("DELETE", "/alert-rules/{uid}", self.delete),
                ("DELETE", "/policies", self.reset_policies),
                ("GET", "/mute-timings", self.timings),
                ("POST", "/mute-timings", self.add_timing),
                ("GET", "/mute-timings/{name}", self.timing),
                ("DELETE", "/mute-timings/{name}", self.delete_timing),
            ],
        )

    def one_group(self, folder: str, group: str) -> Reply:
        return found(self._state.groups.get((folder, group)), "rule group does not exist")

    async def replace_group(self, folder: str, group: str, request: Request) -> Reply:
        body = await request.json()
        if folder not in self._state.folders:
            return refuse(400, "folder does not exist")
        wrong = next((problem for rule in body["rules"] if (problem := _problem(rule))), None)
        if wrong is not None:
            return refuse(400, wrong)
        rules = [{**rule, "id": self._state.number(), "provenance": "api"} for rule in body["rules"]]
        self._state.groups[folder, group] = {**body, "folderUid": folder, "rules": rules}
        return self._state.groups[folder, group]

    def every(self) -> Reply:
        return list(self._state.rules.values())

    async def add(self, request: Request) -> Reply:
        body = await request.json()
        problem = _problem(body)
        if problem or body["folderUID"] not in self._state.folders:
            return refuse(400, problem or "folder does not exist")
        uid = body.get("uid") or fresh_uid()
        self._state.rules[uid] = {**body, "id": self._state.number(), "uid": uid, "provenance": _provenance(request)}
        return JSONResponse(self._state.rules[uid], 201)

    def one(self, uid: str) -> Reply:
        return found(self._state.rules.get(uid), "NotFound")

    async def change(self, uid: str, request: Request) -> Reply:
        rule = self._state.rules.get(uid)
        if rule is None:
            return refuse(404, "NotFound")
        if rule["provenance"] != _provenance(request):
            return refuse(409, f"cannot change provenance from '{rule['provenance']}' to '{_provenance(request)}'")
        rule.update({**await request.json(), "uid": uid, "provenance": rule["provenance"]})
        return rule

    def delete(self, uid: str) -> Response:
        self._state.rules.pop(uid, None)
        return Response(status_code=204)

    def reset_policies(self) -> Reply:
        return {"receiver": "grafana-default-email", "group_by": ["grafana_folder", "alertname"]}

    def timings(self) -> Reply:
        return list(self._state.mute_timings.values())

    async def add_timing(self, request: Request) -> Reply:
        body = await request.json()
        self._state.mute_timings[body["name"]] = body
        return JSONResponse(body, 201)

    def timing(self, name: str) -> Reply:
        return found(self._state.mute_timings.get(name), "Not found")

    def delete_timing(self, name: str) -> Response:
        self._state.mute_timings.pop(name, None)
        return Response(status_code=204)


def _problem(rule: dict[str, Any]) -> str | None:
    missing = [name for name in FIELDS if rule.get(name) in (None, "")]
    return f"invalid alert rule: missing {', '.join(missing)}" if missing else None


def _provenance(request: Request) -> str:
    return "" if request.headers.get("x-disable-provenance") else "api"

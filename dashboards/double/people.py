"""Users, teams and permissions: only as much as a client's fixtures need to set up folders and boards."""

from __future__ import annotations

from fastapi import APIRouter, Request

from .replies import Reply, found, mount, refuse
from .state import State

ADMIN = {"permissionName": "Admin", "permission": 4, "role": "Admin"}


class People:
    """Paths under ``/teams``, ``/users``, ``/admin``, ``/orgs`` and ``/user``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> APIRouter:
        return mount(
            "",
            [
                ("GET", "/teams/search", self.teams),
                ("POST", "/teams", self.add_team),
                ("DELETE", "/teams/{number}", self.delete_team),
                ("GET", "/users", self.users),
                ("GET", "/users/lookup", self.lookup),
                ("POST", "/admin/users", self.add_user),
                ("DELETE", "/admin/users/{number}", self.delete_user),
                ("GET", "/serviceaccounts/search", self.accounts),
                ("GET", "/orgs", self.organizations),
                ("PUT", "/orgs/1", self.rename_organization),
                ("POST", "/user/using/1", self.switch_organization),
                ("PUT", "/user/preferences", self.prefer),
            ],
        )

    def teams(self) -> Reply:
        return {
            "teams": list(self._state.teams.values()),
            "totalCount": len(self._state.teams),
            "page": 1,
            "perPage": 1000,
        }

    async def add_team(self, request: Request) -> Reply:
        number = self._state.number()
        self._state.teams[number] = {"id": number, "name": (await request.json())["name"]}
        return {"message": "Team created", "teamId": number}

    def delete_team(self, number: int) -> Reply:
        return (
            refuse(404, "Team not found")
            if self._state.teams.pop(number, None) is None
            else {"message": "Team deleted"}
        )

    def users(self, page: int = 1) -> Reply:
        """One page holds everybody: the next is empty, which is how a client knows the end."""
        return list(self._state.users.values()) if page == 1 else []

    def lookup(self, loginOrEmail: str) -> Reply:
        return found(
            next((one for one in self._state.users.values() if one["login"] == loginOrEmail), None), "user not found"
        )

    async def add_user(self, request: Request) -> Reply:
        body, number = await request.json(), self._state.number()
        self._state.users[number] = {"id": number, "login": body["login"], "name": body.get("name", "")}
        return {"id": number, "message": "User created"}

    def delete_user(self, number: int) -> Reply:
        return (
            refuse(404, "user not found")
            if self._state.users.pop(number, None) is None
            else {"message": "User deleted"}
        )

    def accounts(self) -> Reply:
        return {"totalCount": 0, "serviceAccounts": [], "page": 1, "perPage": 1000}

    def organizations(self, page: int = 1) -> Reply:
        return [{"id": 1, "name": "Main Org."}] if page == 1 else []

    def rename_organization(self) -> Reply:
        return {"message": "Organization updated"}

    def switch_organization(self) -> Reply:
        return {"message": "Active organization changed"}

    async def prefer(self, request: Request) -> Reply:
        self._state.preferences = await request.json()
        return {"message": "Preferences updated"}


class Permissions:
    """Who may do what with folders and boards: kept and told, never enforced."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> APIRouter:
        things = ("/folders/{uid}", "/dashboards/uid/{uid}")
        shown = [("GET", f"{thing}/permissions", self.shown) for thing in things]
        replaced = [("POST", f"{thing}/permissions", self.replace) for thing in things]
        return mount("", [*shown, *replaced, ("POST", "/access-control/folders/{uid}/users/{user}", self.for_user)])

    def shown(self, uid: str) -> Reply:
        return list(self._state.permissions.get(uid, [ADMIN]))

    async def replace(self, uid: str, request: Request) -> Reply:
        self._state.permissions[uid] = (await request.json())["items"]
        return {"message": f"{'Folder' if uid in self._state.folders else 'Dashboard'} permissions updated"}

    def for_user(self, uid: str, user: str) -> Reply:
        if uid not in self._state.folders:
            return refuse(404, "folder not found")
        known = user.isdecimal() and int(user) in self._state.users
        return {"message": "Permission removed"} if known else refuse(400, "user not found")

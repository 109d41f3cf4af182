"""A Grafana server as this project needs it: a port, and its implementation over HTTP.

The port is small because Grafana's API is about to move (``/api`` gives way to ``/apis``): another writer needs only
this. Plain ``httpx`` speaks it; the client library for Grafana replaces the module ``urllib3`` for the whole process,
which is no price for six calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx

from energyopt.core.errors import ConfigError, EnergyoptError

TIMEOUT = 15.0
MAX_REPLY = 32 * 2**20
"""Bytes of a reply that are read at most; the largest real board is far smaller."""

Json = dict[str, Any]


class GrafanaError(EnergyoptError):
    """The server could not be reached, refused, or answered something that is not Grafana's."""


class ConflictError(GrafanaError):
    """Someone else changed the thing since it was read, or a thing of another kind has its name."""


class GrafanaTarget(Protocol):
    """Things on a server, by uid. Reading an absent thing gives None. All methods raise GrafanaError."""

    def version(self) -> str: ...

    def has_plugin(self, plugin: str) -> bool:
        """Whether a data source of this type can be made there."""
        ...

    def folder(self, uid: str) -> Json | None: ...

    def create_folder(self, uid: str, title: str) -> None: ...

    def datasource(self, uid: str) -> Json | None:
        """Without its secrets, which no server tells."""
        ...

    def write_datasource(self, body: Json, *, exists: bool) -> None: ...

    def board(self, uid: str) -> tuple[Json, str] | None:
        """The board's JSON and the uid of its folder."""
        ...

    def board_message(self, uid: str) -> str:
        """What the writer of the newest version of a board said; empty for a save by hand without a word."""
        ...

    def write_board(self, board: Json, folder: str, *, message: str, overwrite: bool) -> None:
        """Raises ConflictError if ``board["version"]`` is not the server's and ``overwrite`` is False."""
        ...

    def alert_group(self, folder: str, name: str) -> Json | None: ...

    def write_alert_group(self, folder: str, name: str, body: Json) -> None:
        """Replaces the group."""
        ...


class HttpGrafana:
    """A server at ``url``, with a service-account ``token``. Close it after use.

    Raises ConfigError for an address that is none. Redirects are not followed, so the token goes nowhere else.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ConfigError(f"{url!r} is not the address of a Grafana: expected such as https://grafana.example.org.")
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=f"{self.url}/api/", headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT
        )

    def __enter__(self) -> HttpGrafana:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def version(self) -> str:
        info = self._need("GET", "frontend/settings").get("buildInfo")
        if not isinstance(info, Mapping) or not isinstance(info.get("version"), str):
            raise GrafanaError(f"{self.url} answers, but not as a Grafana does.")
        return str(info["version"])

    def has_plugin(self, plugin: str) -> bool:
        return self._ask("GET", f"plugins/{_part(plugin)}/settings") is not None

    def folder(self, uid: str) -> Json | None:
        return self._ask("GET", f"folders/{_part(uid)}")

    def create_folder(self, uid: str, title: str) -> None:
        self._need("POST", "folders", {"uid": uid, "title": title})

    def datasource(self, uid: str) -> Json | None:
        return self._ask("GET", f"datasources/uid/{_part(uid)}")

    def write_datasource(self, body: Json, *, exists: bool) -> None:
        method, path = ("PUT", f"datasources/uid/{_part(body['uid'])}") if exists else ("POST", "datasources")
        self._need(method, path, body)

    def board(self, uid: str) -> tuple[Json, str] | None:
        found = self._ask("GET", f"dashboards/uid/{_part(uid)}")
        if found is None:
            return None
        if not isinstance(found.get("dashboard"), dict) or not isinstance(found.get("meta"), dict):
            raise GrafanaError(f"{self.url} answers for the board {uid!r}, but not as a Grafana does.")
        return found["dashboard"], str(found["meta"].get("folderUid") or "")

    def board_message(self, uid: str) -> str:
        found = self._need("GET", f"dashboards/uid/{_part(uid)}/versions?limit=1")
        versions = found.get("versions")
        newest = versions[0] if isinstance(versions, list) and versions else {}
        return str(newest.get("message") or "") if isinstance(newest, dict) else ""

    def write_board(self, board: Json, folder: str, *, message: str, overwrite: bool) -> None:
        body = {"dashboard": board, "folderUid": folder, "message": message, "overwrite": overwrite}
        self._need("POST", "dashboards/db", body)

    def alert_group(self, folder: str, name: str) -> Json | None:
        return self._ask("GET", f"v1/provisioning/folder/{_part(folder)}/rule-groups/{_part(name)}")

    def write_alert_group(self, folder: str, name: str, body: Json) -> None:
        self._need("PUT", f"v1/provisioning/folder/{_part(folder)}/rule-groups/{_part(name)}", body)

    def _need(self, method: str, path: str, body: Json | None = None) -> Json:
        reply = self._ask(method, path, body)
        if reply is None:
            raise GrafanaError(f"{self.url} has no {path.split('/')[0]!r} in its API, or is not a Grafana.")
        return reply

    def _ask(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """The reply as JSON; None for 404."""
        try:
            with self._client.stream(method, path, json=body) as reply:
                content = _bounded(reply)
        except httpx.TimeoutException as error:
            raise GrafanaError(f"Grafana at {self.url} did not answer within {TIMEOUT:g} s.") from error
        except httpx.HTTPError as error:
            raise GrafanaError(f"Grafana at {self.url} cannot be reached: {error}.") from error
        if reply.status_code == 404:
            return None
        parsed = _parsed(content)
        if reply.is_success and isinstance(parsed, dict):
            return parsed
        if reply.is_success and isinstance(parsed, list):  # Grafana before 11.6 lists versions without a frame
            return {"versions": parsed}
        raise self._refusal(reply.status_code, parsed)

    def _refusal(self, status: int, parsed: object) -> GrafanaError:
        words = parsed.get("message") if isinstance(parsed, dict) else None
        said = f" It says: {str(words)[:300]}" if words else ""
        if status == 401:
            return GrafanaError(f"Grafana at {self.url} does not know this token.{said}")
        if status == 403:
            return GrafanaError(f"This token may not do that at {self.url}: it needs the role Admin or Editor.{said}")
        if status in (409, 412):
            return ConflictError(f"Grafana at {self.url} reports a conflict.{said}")
        if status < 400:
            return GrafanaError(f"{self.url} answered {status} and no JSON object: is this a Grafana?")
        return GrafanaError(f"Grafana at {self.url} answered {status}.{said}")


def _part(text: str) -> str:
    return quote(text, safe="")


def _bounded(reply: httpx.Response) -> bytes:
    content = bytearray()
    for chunk in reply.iter_bytes():
        content += chunk
        if len(content) > MAX_REPLY:
            raise GrafanaError(f"The reply of {reply.url.host} is larger than {MAX_REPLY} bytes.")
    return bytes(content)


def _parsed(content: bytes) -> object:
    try:
        return httpx.Response(200, content=content).json()
    except ValueError:
        return None

"""Brings boards, data sources and alerts to a server: what is equal is not written, what someone changed is reported.

Everything goes by uid, so a second run finds what the first one made whatever people have renamed.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from energyopt.core.errors import ConfigError

from .catalog import FOLDER_TITLE, FOLDER_UID
from .grafana import ConflictError, GrafanaTarget
from .sources import Source

Action = Literal["create", "update", "unchanged", "conflict"]
SERVER_KEYS = ("id", "version")
"""What a server adds to a board; it says nothing about the content."""
STAMP = "energyopt"
"""Beginning of the message of every version that we write: the newest without it is someone else's."""


@dataclass(frozen=True, slots=True)
class Change:
    """What was done, or with ``--dry-run`` would be, to one thing. ``diff`` is a unified diff of its JSON."""

    kind: str
    uid: str
    action: Action
    diff: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall be on the server. ``groups`` are alert rule groups."""

    boards: Sequence[Mapping[str, Any]]
    sources: Sequence[Source]
    groups: Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Provisioner:
    """Writes to ``target``; nothing at all with ``dry_run``. ``force`` overwrites what conflicts."""

    target: GrafanaTarget
    dry_run: bool = False
    force: bool = False

    def apply(self, wanted: Wanted) -> list[Change]:
        """Everything, in the order in which things need each other.

        Raises ConfigError for a missing plugin before anything is written, GrafanaError where the server fails.
        """
        self._need_plugins(wanted.sources)
        changes = [self._folder()]
        changes += [self._source(source) for source in wanted.sources]
        changes += [self._board(board) for board in wanted.boards]
        changes += [self._group(group) for group in wanted.groups]
        return changes

    def _need_plugins(self, sources: Sequence[Source]) -> None:
        for source in sources:
            plugin = source.body["type"]
            if not self.target.has_plugin(plugin):
                raise ConfigError(
                    f"Grafana lacks the data source plugin {plugin}: `grafana cli plugins install {plugin}` there, "
                    "or choose the other kind of results database."
                )

    def _folder(self) -> Change:
        if self.target.folder(FOLDER_UID) is not None:  # its title is the people's to change
            return Change("folder", FOLDER_UID, "unchanged")
        return self._do("folder", FOLDER_UID, None, {}, lambda: self.target.create_folder(FOLDER_UID, FOLDER_TITLE))

    def _source(self, source: Source) -> Change:
        body = dict(source.body)
        found = self.target.datasource(body["uid"])
        there = None if found is None else {key: found.get(key) for key in body}
        keyed = found is not None and all(name in (found.get("secureJsonFields") or {}) for name in source.secrets)
        if there == body and keyed and not self.force:  # a secret is never told, so only whether there is one is seen
            return Change("data source", body["uid"], "unchanged")
        if found is not None and found.get("readOnly"):
            return Change("data source", body["uid"], "conflict", "It is provisioned from a file there.\n")
        whole = {**body, "secureJsonData": dict(source.secrets)} if source.secrets else body

        def write() -> None:
            self.target.write_datasource(whole, exists=found is not None)

        return self._do("data source", body["uid"], there, body, write)

    def _board(self, board: Mapping[str, Any]) -> Change:
        uid = str(board["uid"])
        found = self.target.board(uid)
        if found is None:
            return self._do("board", uid, None, board, lambda: self._write(dict(board), overwrite=False))
        current, folder = found
        there = {key: value for key, value in current.items() if key not in SERVER_KEYS}
        if there == board and folder == FOLDER_UID:
            return Change("board", uid, "unchanged")
        if not self.force and not self.target.board_message(uid).startswith(STAMP):
            why = "Its newest version was not written by energyopt; --force overwrites it.\n"
            return Change("board", uid, "conflict", why + difference(there, board, uid))
        version = current.get("version")
        next_one = {**board, "version": version}
        return self._do("board", uid, there, board, lambda: self._write(next_one, overwrite=self.force))

    def _write(self, board: dict[str, Any], *, overwrite: bool) -> None:
        self.target.write_board(board, FOLDER_UID, message=f"{STAMP} dashboards apply", overwrite=overwrite)

    def _group(self, group: Mapping[str, Any]) -> Change:
        name = str(group["title"])
        found = self.target.alert_group(FOLDER_UID, name)
        there: dict[str, Any] | None = None
        if found is not None:
            rules = found.get("rules") or []
            foreign = sorted({str(rule.get("title")) for rule in rules} - {rule["title"] for rule in group["rules"]})
            if foreign and not self.force:
                why = f"The group holds rules that are not of energyopt ({', '.join(foreign)}); --force removes them.\n"
                return Change("alerts", name, "conflict", why)
            there = {**group, "interval": found.get("interval"), "rules": _ours(rules, group["rules"])}
            if there == group and not foreign:
                return Change("alerts", name, "unchanged")

        def write() -> None:
            self.target.write_alert_group(FOLDER_UID, name, dict(group))

        return self._do("alerts", name, there, group, write)

    def _do(
        self,
        kind: str,
        uid: str,
        there: Mapping[str, Any] | None,
        wanted: Mapping[str, Any],
        write: Callable[[], None],
    ) -> Change:
        diff = difference(there or {}, wanted, uid)
        if not self.dry_run:
            try:
                write()
            except ConflictError as error:
                return Change(kind, uid, "conflict", f"{error}\n{diff}")
        return Change(kind, uid, "create" if there is None else "update", diff)


def difference(there: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> str:
    """A unified diff of two documents as sorted JSON."""
    old, new = (json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (there, wanted))
    return "\n".join(difflib.unified_diff(old, new, f"server/{name}", f"energyopt/{name}", lineterm="", n=1))


def _ours(found: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The server's rules by our uids, with only the fields that we set: it adds some of its own."""
    by_uid = {rule.get("uid"): rule for rule in found}
    return [{key: by_uid.get(rule["uid"], {}).get(key) for key in rule} for rule in wanted]

"""Files that a Grafana and a Prometheus read at start: the same boards, sources, rules and alerts as ``apply`` sends.

A password is never written: the provisioning file names the environment variable ``ENERGYOPT_DB_PASSWORD``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from energyopt.core.errors import ConfigError

from .catalog import FOLDER_TITLE, FOLDER_UID
from .rule_files import as_yaml, grafana_alert_file, prometheus_rules
from .rules import Alert
from .shipped import Board
from .sources import Source

PASSWORD_VARIABLE = "ENERGYOPT_DB_PASSWORD"
BOARDS_AT = "/var/lib/grafana/dashboards/energyopt"
"""Where the boards lie on Grafana's host, unless told otherwise."""


def export_files(
    folder: Path,
    boards: Sequence[Board],
    sources: Sequence[Source],
    boards_at: str,
    found: Sequence[Alert] | None = None,
) -> list[Path]:
    """Write everything below ``folder``, which is made; returns the files. Raises ConfigError if it cannot be.

    ``provisioning/`` is Grafana's folder of that name, ``dashboards/`` goes to ``boards_at`` on its host, and
    ``prometheus/`` holds the rule file. ``found`` are the alerts, None for those that need no number of the operator's.
    """
    texts = {
        "provisioning/datasources/energyopt.yaml": as_yaml(_sources(sources)),
        "provisioning/dashboards/energyopt.yaml": as_yaml(_provider(boards_at)),
        "provisioning/alerting/energyopt.yaml": as_yaml(grafana_alert_file(found)),
        "prometheus/energyopt.rules.yml": as_yaml(prometheus_rules(found)),
        **{f"dashboards/{board['uid']}.json": _pretty(board) for board in boards},
    }
    written = []
    for name, text in texts.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
        written.append(path)
    return written


def _sources(sources: Sequence[Source]) -> dict[str, Any]:
    entries = []
    for source in sources:
        entry = {**source.body, "editable": False}
        if "user" in entry:  # a database that knows users wants a password, whether or not we were told one
            entry["secureJsonData"] = {"password": f"${PASSWORD_VARIABLE}"}
        entries.append(entry)
    return {"apiVersion": 1, "datasources": entries}


def _provider(boards_at: str) -> dict[str, Any]:
    provider = {
        "name": "energyopt",
        "folder": FOLDER_TITLE,
        "folderUid": FOLDER_UID,
        "type": "file",
        "disableDeletion": False,
        "updateIntervalSeconds": 30,
        "allowUiUpdates": False,
        "options": {"path": boards_at},
    }
    return {"apiVersion": 1, "providers": [provider]}


def _pretty(board: Board) -> str:
    return json.dumps(board, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

"""The data sources that the boards ask for, as Grafana stores them.

A password never stands in a file or a board: it is ``secureJsonData``, which a server keeps and does not tell, or the
name of an environment variable in a provisioning file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from energyopt.core.errors import ConfigError

from .catalog import METRICS_UID, PLUGINS, SQL_UID, Flavour

SCRAPE_INTERVAL = "5s"


@dataclass(frozen=True, slots=True)
class Source:
    """``body`` is public; ``secrets`` are not and may be empty."""

    body: Mapping[str, Any]
    secrets: Mapping[str, str]


def metrics_source(url: str, scrape_interval: str = SCRAPE_INTERVAL) -> Source:
    """Prometheus at ``url``. The interval must be that of its scrapes, or rates would be taken over too little."""
    json_data = {"httpMethod": "POST", "timeInterval": scrape_interval, "prometheusType": "Prometheus"}
    return Source(_body(METRICS_UID, "energyopt metrics", "prometheus", url, json_data), {})


def sql_source(flavour: Flavour, address: str) -> Source:
    """Results: ``address`` is ``postgresql://USER[:PASSWORD]@HOST[:PORT]/DATABASE`` or the path of an SQLite file.

    Both are as the Grafana server sees them. Raises ConfigError.
    """
    if flavour == "sqlite":
        path = address.removeprefix("sqlite:///")
        json_data: dict[str, Any] = {"path": path, "pathPrefix": "file:", "pathOptions": "mode=ro"}
        return Source(_body(SQL_UID, "energyopt results", PLUGINS[flavour], "", json_data), {})
    parts = urlsplit(address)
    database = parts.path.strip("/")
    if parts.scheme != "postgresql" or not parts.hostname or not parts.username or not database:
        raise ConfigError(
            "A results database for Grafana is postgresql://USER:PASSWORD@HOST/DATABASE or an SQLite file."
        )
    try:
        port = parts.port or 5432
    except ValueError as error:
        raise ConfigError("The port of the results database is not a number.") from error
    body = _body(
        SQL_UID,
        "energyopt results",
        PLUGINS[flavour],
        f"{parts.hostname}:{port}",
        {"database": unquote(database), "sslmode": "prefer"},
    )
    secrets = {"password": unquote(parts.password)} if parts.password else {}
    return Source({**body, "user": unquote(parts.username)}, secrets)


def _body(uid: str, name: str, plugin: str, url: str, json_data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uid": uid,
        "name": name,
        "type": plugin,
        "access": "proxy",
        "url": url,
        "isDefault": False,
        "jsonData": dict(json_data),
    }

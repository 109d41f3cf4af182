"""Boards for a Grafana: as files, or sent to a server. Knows which database flavour goes with which address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dashboards.catalog import FOLDER_UID, Flavour
from dashboards.export import export_files
from dashboards.grafana import HttpGrafana
from dashboards.provision import Change, Provisioner, Wanted
from dashboards.rule_files import grafana_group
from dashboards.rules import Alert, Limits, alerts
from dashboards.shipped import shipped_boards
from dashboards.sources import Source, metrics_source, sql_source
from energyopt.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses as the Grafana server sees them. ``results`` is a ``postgresql://`` address or an SQLite file."""

    prometheus: str
    results: str
    scrape_interval: str = "5s"
    power_budget: float | None = None
    """Watts that all sensors of a cluster may draw together; None makes no alert of it."""

    @property
    def flavour(self) -> Flavour:
        return "postgresql" if self.results.startswith("postgresql") else "sqlite"

    def alerts(self) -> tuple[Alert, ...]:
        return alerts(Limits(budget=self.power_budget))

    def sources(self) -> list[Source]:
        return [metrics_source(self.prometheus, self.scrape_interval), sql_source(self.flavour, self.results)]


def export_dashboards(folder: Path, servers: Servers, boards_at: str) -> list[Path]:
    """Write provisioning files below ``folder``. Raises ConfigError."""
    return export_files(folder, shipped_boards(servers.flavour), servers.sources(), boards_at, servers.alerts())


def apply_dashboards(
    grafana: str, token: str | None, servers: Servers, *, dry_run: bool, force: bool
) -> tuple[str, list[Change]]:
    """Bring everything to the server; returns its version and what was done.

    Raises ConfigError (no token, bad address, missing plugin), GrafanaError (unreachable, refused).
    """
    if not token:
        raise ConfigError("No Grafana token: put a service-account token into the environment (--token-env names it).")
    group = grafana_group(servers.alerts(), folder_uid=FOLDER_UID)
    wanted = Wanted(shipped_boards(servers.flavour), servers.sources(), [group])
    with HttpGrafana(grafana, token) as target:
        version = target.version()
        return version, Provisioner(target, dry_run=dry_run, force=force).apply(wanted)


def token_from(environ: Mapping[str, str], name: str) -> str | None:
    """The token in the variable ``name``; never taken from the command line, which every user of the host can read."""
    return environ.get(name, "").strip() or None

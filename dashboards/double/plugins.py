"""Plugins: which data sources and panels can be used."""

from __future__ import annotations

from fastapi import APIRouter

from .replies import Reply, found, mount
from .state import State

CORE = (
    "prometheus",
    "grafana-postgresql-datasource",
    "grafana-testdata-datasource",
    "timeseries",
    "stat",
    "table",
    "text",
)


class Plugins:
    """Paths under ``/plugins``, reading only."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> APIRouter:
        return mount(
            "/plugins",
            [
                ("GET", "", self.every),
                ("GET", "/{plugin}/settings", self.settings),
                ("GET", "/{plugin}/health", self.health),
            ],
        )

    def every(self) -> Reply:
        return list(self._state.plugins.values())

    def settings(self, plugin: str) -> Reply:
        return found(self._state.plugins.get(plugin), "Plugin not found, no installed plugin with that id")

    def health(self, plugin: str) -> Reply:
        known = self._state.plugins.get(plugin)
        return found(known and {"status": "OK", "message": "Data source is working"}, "Plugin not found")

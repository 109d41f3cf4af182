"""What ``serve`` is told about tenants, idle energy, carbon and cost reaches the service, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energyopt.cli import serve as serve_verb
from energyopt.compose.service import ServeRequest
from energyopt.core.errors import ConfigError
from telemetry.idle import idle_policy


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ServeRequest]:
    """What would be served, instead of serving it."""
    requests: list[ServeRequest] = []
    monkeypatch.setattr(serve_verb, "run_service", lambda request, notify: requests.append(request))
    return requests


def test_options_reach_the_service(asked: list[ServeRequest], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("search k1\nchat k2\n", encoding="utf-8")
    serve_verb.serve(
        "m",
        api_keys=keys,
        idle_energy="reservation",
        reservation=["search=0.5", "chat=0.25"],
        pue=1.2,
        grid_intensity="380",
        electricity_price=0.3,
        currency="EUR",
    )
    (request,) = asked
    assert request.tenants == {"k1": "search", "k2": "chat"}
    policy = idle_policy(request.idle_energy, request.reservations)
    assert policy.divide(100, {}) == {"search": 50, "chat": 25, "nobody": 25}
    found = request.footprint
    assert (found.pue, found.grid, found.price_per_kilowatt_hour, found.currency) == (1.2, "380", 0.3, "EUR")


def test_nothing_is_assumed(asked: list[ServeRequest]) -> None:
    serve_verb.serve("m")
    (request,) = asked
    assert (request.tenants, request.idle_energy, request.reservations) == ({}, "separate", {})
    assert request.footprint.empty


@pytest.mark.parametrize(
    "options",
    [
        {"reservation": ["search"]},
        {"reservation": ["search=half"]},
        {"pue": 0.5},
        {"currency": "euro"},
        {"api_keys": Path("/no/such/file")},
    ],
)
def test_what_cannot_be_is_refused(asked: list[ServeRequest], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        serve_verb.serve("m", **options)
    assert asked == []

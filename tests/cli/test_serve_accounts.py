"""What ``serve`` is told about tenants, idle energy, carbon and cost reaches the service, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from energyopt.cli import serve as serve_verb
from energyopt.compose.service import ServeRequest
from energyopt.core.errors import ConfigError
from telemetry.idle import idle_policy

APP = typer.Typer()
APP.command()(serve_verb.serve)


def serve(*options: str) -> None:
    """The verb as a shell would call it; its error comes out as raised."""
    done = CliRunner().invoke(APP, ["m", *options], standalone_mode=False)
    if done.exception is not None:
        raise done.exception


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ServeRequest]:
    """What would be served, instead of serving it."""
    requests: list[ServeRequest] = []
    monkeypatch.setattr(serve_verb, "run_service", lambda request, notify: requests.append(request))
    return requests


def test_options_reach_the_service(asked: list[ServeRequest], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("search k1\nchat k2\n", encoding="utf-8")
    accounts = ["--api-keys", str(keys), "--idle-energy", "reservation"]
    shares = ["--reservation", "search=0.5", "--reservation", "chat=0.25"]
    money = ["--pue", "1.2", "--grid-intensity", "380", "--electricity-price", "0.3", "--currency", "EUR"]
    serve(*accounts, *shares, *money)
    (request,) = asked
    assert request.tenants == {"k1": "search", "k2": "chat"}
    policy = idle_policy(request.idle_energy, request.reservations)
    assert policy.divide(100, {}) == {"search": 50, "chat": 25, "nobody": 25}
    found = request.footprint
    assert (found.pue, found.grid, found.price_per_kilowatt_hour, found.currency) == (1.2, "380", 0.3, "EUR")


def test_nothing_is_assumed(asked: list[ServeRequest]) -> None:
    serve()
    (request,) = asked
    assert (request.tenants, request.idle_energy, request.reservations) == ({}, "separate", {})
    assert request.footprint.empty


@pytest.mark.parametrize(
    "options",
    [
        ("--reservation", "search"),
        ("--reservation", "search=half"),
        ("--pue", "0.5"),
        ("--currency", "euro"),
        ("--api-keys", "/no/such/file"),
        ("--api-key", ""),
        ("--meter", "magic"),
        ("--kv-shared-gib-per-host", "1"),
    ],
)
def test_what_cannot_be_is_refused(asked: list[ServeRequest], options: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        serve(*options)
    assert asked == []


def test_an_option_is_the_field_of_its_name(asked: list[ServeRequest]) -> None:
    serve("--max-num-seqs", "8", "--block-size", "32", "--kv-cache-memory-bytes", "1GiB", "--kv-tier-load", "faster")
    engine = asked[0].engine
    assert (engine.model, engine.max_num_seqs, engine.kv.block_tokens) == ("m", 8, 32)
    assert (engine.kv.memory_bytes, engine.kv.tier_load, engine.kv.retention_interval) == (2**30, "faster", 0)

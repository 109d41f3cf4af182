"""Keys: shown once, kept as a digest, gone at once when revoked; and the log of what was done with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.jobs import Scope
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore, open_service_store


@pytest.fixture
def service(url: str, clock: FakeClock) -> Iterator[ServiceStore]:
    store = open_service_store(url, clock=clock)
    yield store
    store.close()


def test_a_key_is_found_by_its_text_until_it_is_revoked(service: ServiceStore, clock: FakeClock) -> None:
    keys = service.keys
    made, shown = keys.create("ci", [Scope.TUNE, Scope.READ, Scope.TUNE], tenant="acme")
    other, _ = keys.create("other", [Scope.ADMIN])
    assert (made.scopes, made.tenant, made.revoked) == ((Scope.TUNE, Scope.READ), "acme", None)
    assert keys.find(shown) == made
    assert keys.any_active()
    clock.sleep(Seconds(5.0))
    assert keys.revoke(made.id).revoked == clock.utc()
    clock.sleep(Seconds(5.0))
    assert keys.revoke(made.id).revoked != clock.utc(), "the first time counts"
    assert keys.find(shown) is None
    listed = keys.keys()
    assert {key.id: key.revoked is None for key in listed} == {made.id: False, other.id: True}
    keys.revoke(other.id)
    assert not keys.any_active()
    with pytest.raises(NotFoundError):
        keys.revoke("none")


def test_the_database_holds_no_secret(service: ServiceStore) -> None:
    _, shown = service.keys.create("ci", [Scope.READ])
    secret = shown.rpartition("_")[2] if shown.count("_") == 2 else shown.split("_", 2)[2]
    with service.engine.connect() as connection:
        row = connection.execute(text("SELECT * FROM energyopt_keys")).one()
    assert not any(secret in str(value) for value in row)


@pytest.mark.parametrize("wrong", ["", "eo_", "x", "eo_0123456789ab_" + "A" * 43, "é" * 60, "eo_\0"])
def test_what_is_no_key_finds_none(service: ServiceStore, wrong: str) -> None:
    made, shown = service.keys.create("ci", [Scope.READ])
    assert service.keys.find(wrong) is None
    assert service.keys.find(shown[:-1]) is None
    changed = shown[:-1] + ("A" if shown[-1] != "A" else "B")
    assert service.keys.find(changed) is None
    assert service.keys.find(shown) == made


@pytest.mark.parametrize(
    ("name", "scopes", "tenant", "words"),
    [
        ("ci", [], None, "scope"),
        ("", [Scope.READ], None, "name"),
        ("x" * 101, [Scope.READ], None, "name"),
        ("ci", [Scope.READ], "A b", "tenant"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(
    service: ServiceStore, name: str, scopes: list[Scope], tenant: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        service.keys.create(name, scopes, tenant)
    assert service.keys.keys() == []


def test_scopes_include_what_they_need() -> None:
    includes = {scope: sorted(scope.included) for scope in Scope}
    assert includes[Scope.ADMIN] == sorted(Scope)
    assert includes[Scope.TUNE] == ["read", "tune"]
    assert includes[Scope.CONTROL] == ["control", "read"]
    assert includes[Scope.READ] == ["read"]
    assert includes[Scope.INFER] == ["infer"]


def test_the_audit_log_is_read_from_the_newest_on(service: ServiceStore) -> None:
    for number in range(5):
        service.keys.note("key:1", "cancel", f"study:{number}", "x" * 10_000)
    newest = service.keys.audit(limit=2)
    assert [entry.target for entry in newest] == ["study:4", "study:3"]
    assert len(newest[0].detail) == 500
    older = service.keys.audit(before=newest[-1].id)
    assert [entry.target for entry in older] == ["study:2", "study:1", "study:0"]

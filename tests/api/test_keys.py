"""Keys by tenant: who may ask, whose energy it is, and what a key file may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.fake import FakeEnergy, FakeLedger
from api.keys import MAX_BYTES, read_keys
from energyopt.core.errors import ConfigError

BODY = {"prompt": "abc", "max_tokens": 2}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_the_key_names_the_tenant_of_every_request(in_process: Any) -> None:
    ledger = FakeLedger(FakeEnergy(1.0, 0.1, "counter"))
    async with in_process(energy=ledger, tenants={"key-s": "search", "key-c": "chat"}, api_key="plain") as http:
        for key in ("key-s", "key-c", "plain"):
            headers = {**bearer(key), "x-session-id": f"session of {key}", "x-tenant": "chat"}
            reply = await http.post("/v1/completions", json={**BODY, "n": 2}, headers=headers)
            assert reply.status_code == 200
        assert (await http.post("/v1/completions", json=BODY, headers=bearer("key"))).status_code == 401
        assert (await http.post("/v1/completions", json=BODY)).status_code == 401
    noted = list(ledger.noted.values())
    assert noted[:2] == [("search", "session of key-s")] * 2
    assert noted[2:] == [("chat", "session of key-c")] * 2 + [(None, "session of plain")] * 2


async def test_without_keys_nobody_can_claim_a_tenant(in_process: Any) -> None:
    ledger = FakeLedger(FakeEnergy(1.0, 0.1, "counter"))
    async with in_process(energy=ledger) as http:
        await http.post("/v1/completions", json=BODY, headers={**bearer("search"), "x-tenant": "search"})
    assert list(ledger.noted.values()) == [(None, None)]


async def test_a_tenant_sees_its_own_account_only(in_process: Any) -> None:
    ledger = FakeLedger(FakeEnergy(1.0, 0.1, "counter"))
    async with in_process(energy=ledger, tenants={"key-s": "search"}, api_key="plain") as http:
        mine = await http.get("/v1/energy/attribution", headers=bearer("key-s"))
        whole = await http.get("/v1/energy/attribution", headers=bearer("plain"))
        assert (await http.get("/v1/energy/attribution")).status_code == 401
    assert [one["tenant"] for one in mine.json()["tenants"]] == ["search"]
    assert whole.json()["tenants"] == []


async def test_without_a_meter_there_is_no_account(in_process: Any) -> None:
    async with in_process(energy=None) as http:
        reply = await http.get("/v1/energy/attribution")
    assert reply.status_code == 404
    assert "not measured" in reply.json()["error"]["message"]


def test_a_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nsearch k1\n  chat\tk2\nsearch k3\n", encoding="utf-8")
    assert read_keys(file) == {"k1": "search", "k2": "chat", "k3": "search"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names 0 tenants"),
        ("search\n", "line 1: expected a tenant and its key"),
        ("search k1 k2\n", "line 1"),
        ("a k\nb k\n", "line 2: this key is given twice"),
        ("nobody k\n", "'nobody' is not allowed"),
        ("UPPER k\n", "'UPPER' is not allowed"),
        ('a"{} k\n', "is not allowed"),
        ("".join(f"t{number} k{number}\n" for number in range(65)), "names 65 tenants: allowed are 1 to 64"),
        ("#" * (MAX_BYTES + 1), "larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_refused_by_its_line_and_without_its_keys(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as refused:
        read_keys(file)
    assert " k" not in str(refused.value).replace(" key", "")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path / "binary", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_keys(path)

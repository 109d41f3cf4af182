"""Boards reach a server over a real socket: once, not twice, never over what someone else did, and errors are told."""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.catalog import BOARDS, FOLDER_UID, SQL_UID
from dashboards.double.server import TOKEN, FakeGrafana
from dashboards.export import export_files
from dashboards.grafana import GrafanaError, HttpGrafana
from dashboards.provision import Change, Provisioner, Wanted
from dashboards.rule_files import GROUP, grafana_group
from dashboards.shipped import shipped_boards
from dashboards.sources import metrics_source, sql_source
from energyopt.core.errors import ConfigError

ADDRESS = "postgresql://reader:s%20ecret@db:6432/energy"
Apply = Callable[..., list[Change]]


def wanted() -> Wanted:
    sources = [metrics_source("http://prometheus:9090"), sql_source("postgresql", ADDRESS)]
    return Wanted(shipped_boards("postgresql"), sources, [grafana_group(folder_uid=FOLDER_UID)])


@pytest.fixture
def apply(url: str) -> Apply:
    def run(what: Wanted | None = None, **how: bool) -> list[Change]:
        with HttpGrafana(url, TOKEN) as target:
            return Provisioner(target, **how).apply(what or wanted())

    return run


def actions(changes: list[Change]) -> dict[str, str]:
    return {change.uid: change.action for change in changes}


def test_everything_arrives_and_a_second_run_writes_nothing(fake: FakeGrafana, apply: Apply) -> None:
    assert set(actions(apply()).values()) == {"create"}
    assert set(fake.boards) == set(BOARDS)
    assert {entry["folder"] for entry in fake.boards.values()} == {FOLDER_UID}
    assert fake.sources[SQL_UID]["secureJsonData"] == {"password": "s ecret"}
    written = list(fake.writes)
    assert set(actions(apply()).values()) == {"unchanged"}
    assert fake.writes == written


def test_a_dry_run_writes_nothing_and_shows_what_would_change(fake: FakeGrafana, apply: Apply) -> None:
    assert set(actions(apply(dry_run=True)).values()) == {"create"}
    assert fake.writes == []
    apply()
    done, other = len(fake.writes), copy.deepcopy(wanted())
    other.boards[0]["title"] = "Another title"  # type: ignore[index]
    changed = [change for change in apply(other, dry_run=True) if change.action != "unchanged"]
    assert [(change.uid, change.action) for change in changed] == [("energyopt-fleet", "update")]
    assert '- "title": "energyopt / Fleet"' in changed[0].diff
    assert '+ "title": "Another title"' in changed[0].diff
    assert len(fake.writes) == done


def test_a_new_version_of_ours_is_written(fake: FakeGrafana, apply: Apply) -> None:
    apply()
    other = copy.deepcopy(wanted())
    other.boards[1]["description"] = "Better"  # type: ignore[index]
    assert actions(apply(other))["energyopt-gpu"] == "update"
    assert fake.boards["energyopt-gpu"]["dashboard"]["description"] == "Better"
    assert actions(apply(other))["energyopt-gpu"] == "unchanged"


def test_what_a_person_changed_is_kept_unless_forced(fake: FakeGrafana, apply: Apply) -> None:
    apply()
    fake.edit("energyopt-fleet", title="Ours now")
    conflict = next(change for change in apply() if change.uid == "energyopt-fleet")
    assert conflict.action == "conflict"
    assert "Ours now" in conflict.diff
    assert fake.boards["energyopt-fleet"]["dashboard"]["title"] == "Ours now"
    assert actions(apply(force=True))["energyopt-fleet"] == "update"
    assert fake.boards["energyopt-fleet"]["dashboard"]["title"] == BOARDS["energyopt-fleet"]


def test_a_change_between_reading_and_writing_is_a_conflict(fake: FakeGrafana, url: str, apply: Apply) -> None:
    apply()
    other = copy.deepcopy(wanted())
    other.boards[0]["description"] = "Better"  # type: ignore[index]
    with HttpGrafana(url, TOKEN) as target:
        message = target.board_message

        def race(uid: str) -> str:
            said = message(uid)
            fake.edit(uid, title="Meanwhile")
            return said

        target.board_message = race  # type: ignore[method-assign]
        changes = Provisioner(target).apply(other)
    assert actions(changes)["energyopt-fleet"] == "conflict"
    assert fake.boards["energyopt-fleet"]["dashboard"]["title"] == "Meanwhile"


def test_rules_of_others_in_our_group_are_kept_unless_forced(fake: FakeGrafana, apply: Apply) -> None:
    apply()
    group = fake.groups[FOLDER_UID, GROUP]
    group["rules"].append({**group["rules"][0], "uid": "theirs", "title": "Theirs"})
    conflict = next(change for change in apply() if change.kind == "alerts")
    assert (conflict.action, "Theirs" in conflict.diff) == ("conflict", True)
    assert actions(apply(force=True))[GROUP] == "update"
    assert [rule["uid"] for rule in fake.groups[FOLDER_UID, GROUP]["rules"]] == [
        rule["uid"] for rule in grafana_group(folder_uid=FOLDER_UID)["rules"]
    ]


def test_an_alert_that_differs_is_mended(fake: FakeGrafana, apply: Apply) -> None:
    apply()
    fake.groups[FOLDER_UID, GROUP]["rules"][0]["for"] = "1s"
    assert actions(apply())[GROUP] == "update"
    assert actions(apply())[GROUP] == "unchanged"


def test_a_source_that_differs_is_mended_and_a_provisioned_one_reported(fake: FakeGrafana, apply: Apply) -> None:
    apply()
    fake.sources[SQL_UID]["url"] = "elsewhere:1"
    assert actions(apply())[SQL_UID] == "update"
    assert fake.sources[SQL_UID]["url"] == "db:6432"
    fake.sources[SQL_UID].update(url="elsewhere:1", readOnly=True)
    assert actions(apply())[SQL_UID] == "conflict"
    assert fake.sources[SQL_UID]["url"] == "elsewhere:1"


def test_a_renamed_folder_stays_renamed(fake: FakeGrafana, apply: Apply) -> None:
    apply()
    fake.folders[FOLDER_UID]["title"] = "Energy team"
    assert set(actions(apply()).values()) == {"unchanged"}
    assert fake.folders[FOLDER_UID]["title"] == "Energy team"


def test_a_missing_plugin_is_named_before_anything_is_written(fake: FakeGrafana, apply: Apply) -> None:
    what = Wanted(shipped_boards("sqlite"), [sql_source("sqlite", "/data/e.db")], [])
    with pytest.raises(ConfigError, match="lacks the data source plugin frser-sqlite-datasource"):
        apply(what)
    assert fake.writes == []
    fake.state.plugins["frser-sqlite-datasource"] = {"id": "frser-sqlite-datasource"}
    assert set(actions(apply(what)).values()) == {"create"}


class TestErrors:
    def test_wrong_token(self, url: str) -> None:
        with (
            HttpGrafana(url, "glsa_wrong") as target,
            pytest.raises(GrafanaError, match="does not know this token") as e,
        ):
            target.version()
        assert "glsa_wrong" not in str(e.value)

    def test_refused_connection(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with HttpGrafana(f"http://127.0.0.1:{port}", TOKEN) as target, pytest.raises(GrafanaError, match="be reached"):
            target.version()

    def test_another_server(self, url: str) -> None:
        with HttpGrafana(f"{url}/elsewhere", TOKEN) as target, pytest.raises(GrafanaError, match="not a Grafana"):
            target.version()

    @pytest.mark.parametrize("address", ["grafana:3000", "ftp://g", "http://", "http://u:p@g", "http://g?x=1"])
    def test_no_address(self, address: str) -> None:
        with pytest.raises(ConfigError, match="is not the address of a Grafana"):
            HttpGrafana(address, TOKEN)

    @pytest.mark.parametrize(
        "address", ["postgresql://db/energy", "mysql://u@h/d", "postgresql://u@h/", "postgresql://u@h:x/d"]
    )
    def test_no_database(self, address: str) -> None:
        with pytest.raises(ConfigError):
            sql_source("postgresql", address)

    def test_a_board_that_the_server_refuses(self, apply: Apply) -> None:
        bad = copy.deepcopy(wanted())
        bad.boards[0]["title"] = ""  # type: ignore[index]
        with pytest.raises(GrafanaError, match="Dashboard title cannot be empty"):
            apply(bad)


class TestExport:
    def test_files_hold_what_apply_sends_and_no_password(self, tmp_path: Path) -> None:
        what = wanted()
        boards: list[dict[str, Any]] = [dict(board) for board in what.boards]
        files = export_files(tmp_path / "out", boards, what.sources, "/boards")
        assert len(files) == len(BOARDS) + 4
        assert not [path for path in files if "s ecret" in path.read_text() or "s%20ecret" in path.read_text()]
        found = yaml.safe_load((tmp_path / "out/provisioning/datasources/energyopt.yaml").read_text())["datasources"]
        for entry, source in zip(found, what.sources, strict=True):
            assert {key: entry[key] for key in source.body} == dict(source.body)
        assert found[1]["secureJsonData"] == {"password": "$ENERGYOPT_DB_PASSWORD"}
        provider = yaml.safe_load((tmp_path / "out/provisioning/dashboards/energyopt.yaml").read_text())["providers"][0]
        assert provider["options"]["path"] == "/boards"
        assert provider["folderUid"] == FOLDER_UID

    def test_a_place_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="cannot be written"):
            export_files(tmp_path / "file", [], [], "/boards")

"""The stack's files fit each other and the verbs that they call."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError

from energyopt.cli.main import main
from energyopt.core.jobs import Scope
from energyopt.store.service_store import open_service_store
from telemetry.catalog import ATTRIBUTED, CATALOG, CONTROL, TOKENS
from tests.command_lines import parse

UsageError = typer.BadParameter.__base__ or Exception
"""What Typer raises for a command line without a meaning; it has no public name."""
DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_the_stack_is_whole(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"agent", "api", "engine", "postgres", "prometheus", "grafana"} <= set(services)
    for name, service in services.items():
        assert ("image" in service) != ("build" in service)
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            host = name == "agent" and source in ("/sys", "/proc", "/dev") and volume.endswith(f"/host{source}:ro")
            assert host or ((DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"])
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    assert ":latest" not in (DEPLOY / "compose.yaml").read_text()


def our_commands(compose: dict[str, Any]) -> list[list[str]]:
    """Every command line of ours in the stack: those of the services, and those of the scripts that they run."""
    commands = [service["command"] for service in compose["services"].values() if "command" in service]
    lines = [line for path in DEPLOY.glob("*.sh") for line in path.read_text().splitlines()]
    scripted = [shlex.split(line) for line in lines if line.startswith("energyopt ")]
    return [[re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in words] for words in commands + scripted]


def test_every_command_of_ours_parses(compose: dict[str, Any]) -> None:
    """By the real tree of verbs, so that a renamed verb or option shows here; nothing is run."""
    ours = [words[1:] for words in our_commands(compose) if words[0] == "energyopt"]
    assert {words[0] for words in ours} >= {"agent", "api", "serve", "keys", "dashboards", "studies"}
    for words in ours:
        parse(words[: words.index(">")] if ">" in words else words)


@pytest.mark.parametrize("fault", [["agent", "--prot", "9401"], ["apis"], ["serve"], ["api", "--workers", "many"]])
def test_a_wrong_command_does_not_parse(fault: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(fault)


def listening(service: dict[str, Any]) -> int:
    """The port that a service of ours was told to listen on."""
    command = service["command"]
    return int(command[command.index("--port") + 1])


def test_every_port_that_is_asked_is_one_that_a_service_listens_on(compose: dict[str, Any]) -> None:
    services = compose["services"]
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    scraped = [
        target for job in config["scrape_configs"] for group in job["static_configs"] for target in group["targets"]
    ]
    assert len(scraped) == len(set(scraped)) == 2
    for target in scraped:
        name, port = target.split(":")
        assert listening(services[name]) == int(port)
        assert "0.0.0.0" in services[name]["command"]
    for name in ("agent", "api", "engine"):
        published = [port.rsplit(":", 1)[1] for port in services[name]["ports"]]
        assert published == [str(listening(services[name]))]


def test_watts_that_two_processes_read_count_once() -> None:
    """Agent and engine read the same sensors. The agent's series count, under labels that the engine's share."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    agent, engine = config["scrape_configs"]
    here = {"job": "energyopt", "instance": "localhost"}
    sensors = [metric for metric in CATALOG if re.match("energyopt_[cg]pu_", metric.name) and metric not in CONTROL]
    assert len(sensors) > 20
    for metric in sensors:
        assert relabelled(agent, metric.name) == here
        assert relabelled(engine, metric.name) is None
    for metric in (TOKENS, ATTRIBUTED, *CONTROL):
        assert relabelled(engine, metric.name) == here
    assert relabelled(engine, "up") == {}


def relabelled(job: dict[str, Any], name: str) -> dict[str, str] | None:
    """Labels that the scrape sets on a series, None where it drops it: the rules of the kinds that the file has."""
    labels = {}
    for rule in job["metric_relabel_configs"]:
        assert rule["source_labels"] == ["__name__"]
        if re.fullmatch(rule["regex"], name) is not None:
            if rule.get("action") == "drop":
                return None
            labels[rule["target_label"]] = rule["replacement"]
    return labels


def test_grafana_may_read_views_and_no_table(postgres_url: str) -> None:
    """The tables hold the API's keys. The script runs at every start, so it runs twice here."""
    with closing(open_service_store(postgres_url)) as store:
        store.keys.create("operator", [Scope.ADMIN], None)
    address = make_url(postgres_url)
    host = address.host or address.query.get("host")
    given = {"PGHOST": host, "PGPORT": address.port, "PGUSER": address.username, "PGDATABASE": address.database}
    given |= {"PGPASSWORD": address.password, "READER_PASSWORD": "it's"}
    environment = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
    engine = create_engine(address.set(drivername="postgresql+psycopg"))
    try:
        for _ in range(2):
            subprocess.run(["sh", str(DEPLOY / "reader.sh")], env=environment, check=True, capture_output=True)
        with engine.connect() as connection:
            connection.execute(text("SET ROLE reader"))
            assert connection.execute(text("SELECT count(*) FROM energyopt_v_studies")).scalar() == 0
            with pytest.raises(ProgrammingError, match="permission denied"):
                connection.execute(text("SELECT * FROM energyopt_keys"))
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY reader"))
            connection.execute(text("DROP ROLE reader"))
        engine.dispose()


def test_passwords_are_asked_for_and_never_given(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, value in (service.get("environment") or {}).items():
            assert "PASSWORD" not in name or value.endswith(":?choose a password}")


def test_the_exporting_service_writes_what_the_others_read(
    compose: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = compose["services"]
    command = [part.replace("/export", str(tmp_path)) for part in services["boards"]["command"]]
    monkeypatch.setattr(sys, "argv", command)
    main_or_exit()
    grafana = services["grafana"]["environment"]
    home = grafana["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].replace("/export", str(tmp_path))
    assert Path(home).exists()
    assert (Path(grafana["GF_PATHS_PROVISIONING"].replace("/export", str(tmp_path))) / "datasources").is_dir()
    provider = yaml.safe_load((tmp_path / "provisioning/dashboards/energyopt.yaml").read_text())["providers"][0]
    assert sorted(path.name for path in Path(provider["options"]["path"]).iterdir()) == sorted(
        path.name for path in (tmp_path / "dashboards").iterdir()
    )
    source = yaml.safe_load((tmp_path / "provisioning/datasources/energyopt.yaml").read_text())["datasources"]
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert source[0]["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    assert source[1]["user"] == "reader"
    assert "ENERGYOPT_DB_PASSWORD" in grafana
    rules = [path.replace("/export", str(tmp_path)) for path in config["rule_files"]]
    assert all(Path(path).exists() for path in rules)
    if shutil.which("promtool") is not None:
        whole = (DEPLOY / "prometheus.yml").read_text().replace("/export", str(tmp_path))
        (tmp_path / "prometheus.yml").write_text(whole)
        check = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
        subprocess.run(check, check=True, capture_output=True, timeout=60)


def main_or_exit() -> None:
    """Typer ends even a success by exiting."""
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)


class TestVerbs:
    def run(self, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["energyopt", "dashboards", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    def test_lint_is_content_with_what_ships(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(monkeypatch, "lint") == 0
        assert "No fault found" in capsys.readouterr().out

    def test_lint_reads_boards_of_others(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        self.run(monkeypatch, "export", str(tmp_path), "--results", "/data/e.db")
        board = tmp_path / "dashboards" / "energyopt-gpu.json"
        board.write_text(board.read_text().replace("energyopt_gpu_power_watts", "energyopt_gpu_power_mw"))
        capsys.readouterr()
        assert self.run(monkeypatch, "lint", str(tmp_path / "dashboards")) == 2
        said = capsys.readouterr()
        assert "energyopt / GPU: Power: reading against counter: selects 'energyopt_gpu_power_mw'" in said.out
        assert "Faults in the boards: 2." in said.err  # it stands in two panels

    def test_apply_without_a_token_says_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("GRAFANA_TOKEN", raising=False)
        assert self.run(monkeypatch, "apply", "--grafana", "http://127.0.0.1:1") == 2
        assert "service-account token" in capsys.readouterr().err

    def test_apply_to_nobody_is_one_sentence(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(os.environ, "MY_TOKEN", "glsa_x")
        assert self.run(monkeypatch, "apply", "--grafana", "http://127.0.0.1:1", "--token-env", "MY_TOKEN") == 1
        said = capsys.readouterr().err
        assert "cannot be reached" in said
        assert "glsa_x" not in said

"""The stack's files fit each other and the verbs that they call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from energyopt.cli.main import main

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_the_stack_is_whole(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"engine", "postgres", "prometheus", "grafana"} <= set(services)
    for service in services.values():
        assert ("image" in service) != ("build" in service)
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    assert ":latest" not in (DEPLOY / "compose.yaml").read_text()


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

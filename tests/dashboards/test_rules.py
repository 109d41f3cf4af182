"""The rules load in Prometheus, compute what they say and fire when they should, judged by promtool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.catalog import METRICS_UID
from dashboards.expression import Reader, Series, catalogue_series
from dashboards.rule_files import as_yaml, grafana_alert_file, grafana_group, prometheus_rules
from dashboards.rules import EFFICIENCY, IDLE, POWER, RECORDINGS, Limits, alerts
from dashboards.units import of_unit

EVERY = alerts(Limits(budget=500.0))
TARGET = 'job="e",instance="h:8000"'
GPU = f'{TARGET},gpu_uuid="G1",scope="gpu"'


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        reason = "no promtool: install the package prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def run(promtool: str, folder: Path, *arguments: str) -> None:
    done = subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yml").write_text(as_yaml(prometheus_rules(EVERY)))
    return tmp_path


def verdict(promtool: str, folder: Path, test: dict[str, Any]) -> None:
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": [{"interval": "30s", **test}]}
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    run(promtool, folder, "test", "rules", "test.yml")


def series(**values: str) -> list[dict[str, str]]:
    return [{"series": name, "values": text} for name, text in values.items()]


def test_prometheus_accepts_the_file(promtool: str, folder: Path) -> None:
    run(promtool, folder, "check", "rules", "--lint-fatal", "rules.yml")


def test_every_expression_fits_the_catalogue() -> None:
    own = {rule.name: Series(False, None, None) for rule in RECORDINGS}
    reader = Reader({**catalogue_series(), **own})
    values = {rule.name: reader.read(rule.expr) for rule in RECORDINGS}
    for alert in EVERY:
        found = reader.read(alert.expr)
        used = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
        assert found.labels is None or used <= found.labels, alert.name
    assert reader.problems == []
    assert values[POWER.name].dimension == values[IDLE.name].dimension == of_unit("watt")
    assert values[EFFICIENCY.name].dimension == of_unit("suffix:tok/J")


def test_recordings_compute_power_and_efficiency(promtool: str, folder: Path) -> None:
    """300 W and 100 W, 200 of them idle; 800 tokens a second: 2 tokens per joule."""
    idle, decode = (f'{TARGET},model="m",method="w",phase="{phase}"' for phase in ("idle", "decode"))
    given = {
        f'energyopt_gpu_energy_joules_total{{{GPU},source="counter"}}': "0+9000x40",
        f'energyopt_cpu_energy_joules_total{{{TARGET},package="0",domain="package",source="counter"}}': "0+3000x40",
        f"energyopt_attributed_energy_joules_total{{{idle}}}": "0+6000x40",
        f"energyopt_attributed_energy_joules_total{{{decode}}}": "0+6000x40",
        f'energyopt_tokens_total{{{TARGET},model="m",kind="output"}}': "0+24000x40",
        'energyopt_tokens_total{job="e",instance="blind:8000",model="m",kind="output"}': "0+24000x40",
    }

    def expects(name: str, labels: str, value: float) -> dict[str, Any]:
        return {"expr": name, "eval_time": "15m", "exp_samples": [{"labels": f"{name}{{{labels}}}", "value": value}]}

    checks = [
        expects(POWER.name, TARGET, 400),
        expects(IDLE.name, TARGET, 200),
        expects(EFFICIENCY.name, 'job="e",model="m"', 2),
    ]
    verdict(promtool, folder, {"input_series": series(**given), "promql_expr_test": checks})


BUCKET = f'energyopt_time_to_first_token_seconds_bucket{{{TARGET},model="m",le='
GAP = f'energyopt_inter_token_latency_seconds_bucket{{{TARGET},model="m",le='
MODEL = {"job": "e", "model": "m"}
SENSOR = {"job": "e", "instance": "h:8000", "gpu_uuid": "G1", "scope": "gpu"}
DEVICE = f'{TARGET},gpu_uuid="G1"'
AT_DEVICE = {"job": "e", "instance": "h:8000", "gpu_uuid": "G1"}
FIRES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "EnergyoptFirstTokenLate": (
        {f'{BUCKET}"1.0"}}': "0+1x60", f'{BUCKET}"2.5"}}': "0+10x60", f'{BUCKET}"+Inf"}}': "0+10x60"},
        MODEL,
        "20m",
    ),
    "EnergyoptNextTokenLate": (
        {f'{GAP}"0.1"}}': "0+1x60", f'{GAP}"0.5"}}': "0+10x60", f'{GAP}"+Inf"}}': "0+10x60"},
        MODEL,
        "20m",
    ),
    "EnergyoptSensorDown": ({f"energyopt_gpu_up{{{GPU}}}": "0x20"}, SENSOR, "5m"),
    "EnergyoptSampleOld": ({f"energyopt_gpu_sample_age_seconds{{{GPU}}}": "0+30x20"}, SENSOR, "5m"),
    "EnergyoptCounterStuck": (
        {
            f'energyopt_gpu_energy_joules_total{{{GPU},source="counter"}}': "7000x60",
            f'energyopt_gpu_power_watts{{{GPU},kind="instant"}}': "300x60",
        },
        SENSOR,
        "20m",
    ),
    "EnergyoptCounterDisagrees": ({f"energyopt_gpu_energy_crosscheck_ratio{{{GPU}}}": "0.7x60"}, SENSOR, "15m"),
    "EnergyoptCapNotEnforced": (
        {
            f'energyopt_gpu_energy_joules_total{{{GPU},source="counter"}}': "0+9000x60",
            f'energyopt_gpu_power_limit_watts{{{DEVICE},kind="requested"}}': "250x60",
        },
        AT_DEVICE,
        "20m",
    ),
    "EnergyoptCapLeaseExpired": (
        {f"energyopt_gpu_power_lease_remaining_seconds{{{DEVICE}}}": "0x20"},
        AT_DEVICE,
        "5m",
    ),
    "EnergyoptHeldDownByHeat": (
        {f'energyopt_gpu_throttle_seconds_total{{{DEVICE},reason="thermal_hw"}}': "0+6x60"},
        AT_DEVICE,
        "20m",
    ),
    "EnergyoptBudgetExceeded": (
        {f'energyopt_gpu_energy_joules_total{{{GPU},cluster="c",source="counter"}}': "0+18000x60"},
        {"cluster": "c"},
        "20m",
    ),
    "EnergyoptEfficiencyDropped": (
        {
            f'energyopt_attributed_energy_joules_total{{{TARGET},model="m",method="w",phase="decode"}}': "0+3000x800",
            f'energyopt_tokens_total{{{TARGET},model="m",kind="output"}}': "0+6000x600 3600000+600x200",
        },
        MODEL,
        "380m",
    ),
}
CALM = {
    f"energyopt_gpu_power_lease_remaining_seconds{{{DEVICE}}}": "7x800",
    f'energyopt_gpu_power_limit_watts{{{DEVICE},kind="requested"}}': "300x800",
    f'energyopt_gpu_throttle_seconds_total{{{DEVICE},reason="thermal_hw"}}': "0+1x800",
    f'energyopt_gpu_throttle_seconds_total{{{DEVICE},reason="power_cap"}}': "0+30x800",
    f'energyopt_gpu_energy_joules_total{{{GPU},source="counter"}}': "0+9000x800",
    f'energyopt_gpu_power_watts{{{GPU},kind="instant"}}': "300x800",
    f"energyopt_gpu_up{{{GPU}}}": "1x800",
    f"energyopt_gpu_sample_age_seconds{{{GPU}}}": "0.05x800",
    f"energyopt_gpu_energy_crosscheck_ratio{{{GPU}}}": "1.02x800",
    f'{BUCKET}"1.0"}}': "0+10x800",
    f'{BUCKET}"+Inf"}}': "0+10x800",
    f'{GAP}"0.1"}}': "0+10x800",
    f'{GAP}"+Inf"}}': "0+10x800",
    f'energyopt_attributed_energy_joules_total{{{TARGET},model="m",method="w",phase="decode"}}': "0+3000x800",
    f'energyopt_tokens_total{{{TARGET},model="m",kind="output"}}': "0+6000x800",
}


def test_each_alert_has_a_test() -> None:
    assert set(FIRES) == {alert.name for alert in EVERY}


@pytest.mark.parametrize("name", FIRES)
def test_an_alert_fires_and_names_where(promtool: str, folder: Path, name: str) -> None:
    given, labels, at = FIRES[name]
    alert = next(alert for alert in EVERY if alert.name == name)

    def filled(text: str) -> str:
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels.get(match[1], ""), text)

    expected = {
        "exp_labels": {**labels, "severity": alert.severity},
        "exp_annotations": {"summary": filled(alert.summary), "description": filled(alert.description)},
    }
    check = {"alertname": name, "eval_time": at, "exp_alerts": [expected]}
    verdict(promtool, folder, {"input_series": series(**given), "alert_rule_test": [check]})


def test_nothing_fires_on_a_healthy_installation_or_an_empty_one(promtool: str, folder: Path) -> None:
    checks = [{"alertname": alert.name, "eval_time": "380m", "exp_alerts": []} for alert in EVERY]
    for given in (CALM, {}):
        verdict(promtool, folder, {"input_series": series(**given), "alert_rule_test": checks})


class TestGrafana:
    def test_the_same_alerts_with_the_same_limits(self) -> None:
        group = grafana_group(folder_uid="f")
        assert [rule["uid"] for rule in group["rules"]] == [alert.name for alert in alerts()]
        for rule, alert in zip(group["rules"], alerts(), strict=True):
            query, limit = rule["data"]
            evaluator = limit["model"]["conditions"][0]["evaluator"]
            sign = {"gt": ">", "lt": "<"}[evaluator["type"]]
            assert f"{query['model']['expr']} {sign} {evaluator['params'][0]:g}" == alert.expr
            assert query["datasourceUid"] == METRICS_UID
            assert rule["condition"] == limit["refId"] == "C"
            assert len(rule["uid"]) <= 40

    def test_the_file_holds_what_the_api_gets(self) -> None:
        parsed = yaml.safe_load(as_yaml(grafana_alert_file()))
        group = parsed["groups"][0]
        for ours, theirs in zip(group["rules"], grafana_group(folder_uid="f")["rules"], strict=True):
            assert ours == {key: theirs[key] for key in ours}
        assert "apiVersion" in parsed
        assert group["folder"]


def test_a_budget_makes_an_alert_of_its_own() -> None:
    with_budget = {alert.name for alert in alerts(Limits(budget=500.0))}
    assert with_budget - {alert.name for alert in alerts()} == {"EnergyoptBudgetExceeded"}

"""Rules in the form of each server: a Prometheus rule file, and a Grafana rule group with the same alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from .catalog import FOLDER_TITLE, METRICS_UID
from .rules import INTERVAL, RECORDINGS, Alert, alerts

GROUP = "energyopt"
RECORDING_GROUP = "energyopt-recordings"
LOOK_BACK = 900
"""Seconds of data that Grafana hands to an alert's query. Ranges within a query reach further back by themselves."""


def prometheus_rules(found: Sequence[Alert] | None = None) -> dict[str, Any]:
    """The content of a Prometheus rule file."""
    recorded = [{"record": rule.name, "expr": rule.expr} for rule in RECORDINGS]
    return {
        "groups": [
            {"name": RECORDING_GROUP, "interval": f"{INTERVAL}s", "rules": recorded},
            {
                "name": GROUP,
                "interval": f"{INTERVAL}s",
                "rules": [_prometheus_alert(alert) for alert in found or alerts()],
            },
        ]
    }


def grafana_group(found: Sequence[Alert] | None = None, *, folder_uid: str) -> dict[str, Any]:
    """The body of a rule group for Grafana's provisioning API. Every rule has a uid of ours, which never changes."""
    rules = [_grafana_alert(alert, folder_uid) for alert in found or alerts()]
    return {"title": GROUP, "folderUid": folder_uid, "interval": 2 * INTERVAL, "rules": rules}


def grafana_alert_file(found: Sequence[Alert] | None = None) -> dict[str, Any]:
    """The same for file provisioning, where a folder goes by its title and moments are durations."""
    kept = ("uid", "title", "condition", "data", "noDataState", "execErrState", "for", "labels", "annotations")
    rules = [{key: rule[key] for key in kept} for rule in grafana_group(found, folder_uid="")["rules"]]
    group = {"orgId": 1, "name": GROUP, "folder": FOLDER_TITLE, "interval": f"{2 * INTERVAL}s", "rules": rules}
    return {"apiVersion": 1, "groups": [group]}


def as_yaml(document: dict[str, Any]) -> str:
    """YAML in the order given."""
    text: str = yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=True)
    return text


def _prometheus_alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": f"{alert.hold}s",
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }


def _grafana_alert(alert: Alert, folder_uid: str) -> dict[str, Any]:
    """Query A is the value, expression C its limit; no data is no alert, since absent means not installed."""
    evaluator = {"type": "gt" if alert.comparison == ">" else "lt", "params": [alert.limit]}
    return {
        "uid": alert.name,
        "title": alert.name,
        "ruleGroup": GROUP,
        "folderUID": folder_uid,
        "orgID": 1,
        "condition": "C",
        "data": [
            _stage("A", METRICS_UID, {"expr": alert.value, "instant": True, "range": False}),
            _stage("C", "__expr__", {"type": "threshold", "expression": "A", "conditions": [{"evaluator": evaluator}]}),
        ],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": f"{alert.hold}s",
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description},
        "isPaused": False,
    }


def _stage(ref: str, source: str, model: dict[str, Any]) -> dict[str, Any]:
    whole = {"refId": ref, "intervalMs": 1000, "maxDataPoints": 43200, **model}
    return {
        "refId": ref,
        "queryType": "",
        "relativeTimeRange": {"from": LOOK_BACK, "to": 0},
        "datasourceUid": source,
        "model": whole,
    }

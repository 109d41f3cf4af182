"""Variables that the boards over Prometheus share, and the matchers that make them count."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard

from telemetry import catalog

from ..board import choice, datasource
from ..promql import PromQl

SCOPE = 'cluster=~"$cluster",job=~"$job",instance=~"$host"'
ALL = PromQl(SCOPE)
"""Builds queries within the chosen clusters, jobs and hosts."""

NO_ENERGY = "No energy sensor answers here: `energyopt doctor` on the host says why."
NO_ENGINE = "No engine reports here: scrape the /metrics of `energyopt serve`."
NO_SPLIT = "Nothing attributes energy here: it takes an engine and a sensor in one process."
NO_REQUESTS = "No request has finished in this range."


def common_variables() -> list[dashboard.VariableModel]:
    """Data source, cluster, job and host. Any process of ours has one of the metrics that they are read from."""
    anything = (catalog.GPU.up, catalog.CPU.up, catalog.STEPS)
    return [
        datasource("datasource", "Prometheus", "prometheus"),
        choice("cluster", "Cluster", "Label `cluster`, if the scrape sets one.", anything, "cluster", ""),
        choice("job", "Job", "Scrape job.", anything, "job", 'cluster=~"$cluster"'),
        choice("host", "Host", "Address of the process.", anything, "instance", 'cluster=~"$cluster",job=~"$job"'),
    ]


def model_variable() -> dashboard.VariableModel:
    """Served models."""
    return choice("model", "Model", "Served model.", (catalog.STEPS, catalog.REQUESTS), "model", SCOPE)

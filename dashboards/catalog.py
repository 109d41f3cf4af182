"""The boards by their uid, and what else has a fixed name on a Grafana server."""

from __future__ import annotations

import re
from typing import Literal

FLEET = "energyopt-fleet"
GPU = "energyopt-gpu"
SERVING = "energyopt-serving"
TUNING = "energyopt-tuning"

BOARDS = {
    FLEET: "energyopt / Fleet",
    GPU: "energyopt / GPU",
    SERVING: "energyopt / Serving",
    TUNING: "energyopt / Tuning",
}
"""Titles by uid, in the order of the links on every board."""

UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""What Grafana takes for a uid."""

TAG = "energyopt"
FOLDER_UID = "energyopt"
FOLDER_TITLE = "energyopt"
METRICS_UID = "energyopt-metrics"
SQL_UID = "energyopt-sql"

Flavour = Literal["postgresql", "sqlite"]
"""Which database the Tuning board asks: the same queries, written for either plugin."""

PLUGINS: dict[Flavour, str] = {
    "postgresql": "grafana-postgresql-datasource",
    "sqlite": "frser-sqlite-datasource",
}

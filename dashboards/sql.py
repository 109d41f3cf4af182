"""SQL targets of one definition for two plugins: Grafana's own for PostgreSQL, the community's for SQLite.

Needs ``grafana-foundation-sdk``. Queries read the ``energyopt_v_`` views only and use no word that the two databases
understand differently.
"""

from __future__ import annotations

from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.models import common, dashboard

from .catalog import PLUGINS, Flavour


def sql_source(flavour: Flavour) -> common.DataSourceRef:
    """The data source that the reader chose for results."""
    return common.DataSourceRef(type_val=PLUGINS[flavour], uid="${sql}")


class SqlQuery(variants.Dataquery):
    """A query whose answer is a table. A column ``time`` holds seconds since 1970."""

    def __init__(self, flavour: Flavour, sql: str) -> None:
        self.flavour = flavour
        self.sql = sql
        self.ref_id = "A"

    def to_json(self) -> dict[str, object]:
        source = sql_source(self.flavour)
        if self.flavour == "postgresql":
            shape: dict[str, object] = {"rawSql": self.sql, "rawQuery": True, "format": "table", "editorMode": "code"}
        else:
            shape = {
                "rawQueryText": self.sql,
                "queryText": self.sql,
                "queryType": "table",
                "timeColumns": ["time", "timeend"],
            }
        return {"refId": self.ref_id, "datasource": source, **shape}


def study_variable(flavour: Flavour) -> dashboard.VariableModel:
    """Studies by name, newest first. Both plugins read the columns ``__text`` and ``__value``."""
    asked = (
        "SELECT name || ' (' || substr(study_id, 1, 8) || ')' AS __text, study_id AS __value "
        "FROM energyopt_v_studies ORDER BY sequence DESC"
    )
    return dashboard.VariableModel(
        type_val=dashboard.VariableType.QUERY,
        name="study",
        label="Study",
        description="A stored study; the newest stands first.",
        datasource=sql_source(flavour),
        query=asked,
        definition=asked,
        refresh=dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED,
        sort=dashboard.VariableSort.DISABLED,
    )

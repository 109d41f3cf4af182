"""A board: rows of panels, variables and links, written as the classic JSON model of Grafana 11.6 and newer.

Needs ``grafana-foundation-sdk``. Identifiers are stable: a board's ``uid`` never changes, so links and bookmarks last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard, timeseries

from telemetry.catalog import Metric

from .catalog import BOARDS, TAG
from .panels import METRICS, fitting_legend

COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and panels beneath it, each with its width in columns; ``height`` is that of all of them."""

    title: str
    height: int
    panels: tuple[tuple[int, dashboard.Panel], ...]


def build_board(
    uid: str,
    description: str,
    rows: Sequence[Row],
    variables: Sequence[dashboard.VariableModel],
    *,
    since: str = "now-1h",
    refresh: str = "10s",
    annotations: Sequence[dashboard.AnnotationQuery] = (),
) -> dict[str, Any]:
    """The board as plain JSON data."""
    made = dashboard.Dashboard(
        uid=uid,
        title=BOARDS[uid],
        description=description,
        tags=[TAG],
        editable=False,
        graph_tooltip=dashboard.DashboardCursorSync.CROSSHAIR,
        time=dashboard.DashboardDashboardTime(from_val=since, to="now"),
        refresh=refresh,
        panels=list(_laid_out(rows)),
        templating=dashboard.DashboardDashboardTemplating(list(variables)),
        annotations=dashboard.AnnotationContainer(list(annotations)),
        links=[_link(other) for other in BOARDS if other != uid],
    )
    plain: dict[str, Any] = json.loads(json.dumps(made, cls=JSONEncoder))
    return _without_noise(plain)


def datasource(name: str, label: str, plugin: str) -> dashboard.VariableModel:
    """Which server to ask: every query goes through it, so a board works with any uid."""
    return dashboard.VariableModel(
        type_val=dashboard.VariableType.DATASOURCE,
        name=name,
        label=label,
        query=plugin,
        refresh=dashboard.VariableRefresh.ON_DASHBOARD_LOAD,
    )


def choice(
    name: str, label: str, help_text: str, metrics: Sequence[Metric], of: str, scope: str
) -> dashboard.VariableModel:
    """Values that ``metrics`` have for a label, several or all. All matches series without the label too."""
    names = "|".join(metric.name for metric in metrics)
    asked = f'label_values({{__name__=~"{names}"{"," * bool(scope)}{scope}}}, {of})'
    return dashboard.VariableModel(
        type_val=dashboard.VariableType.QUERY,
        name=name,
        label=label,
        description=help_text,
        datasource=METRICS,
        query={"query": asked, "refId": name},
        definition=asked,
        multi=True,
        include_all=True,
        all_value=".*",
        current=dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]),
        refresh=dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED,
        sort=dashboard.VariableSort.NATURAL_ASC,
    )


def text_box(name: str, label: str, help_text: str, value: str) -> dashboard.VariableModel:
    """A number that the reader types."""
    option = dashboard.VariableOption(selected=True, text=value, value=value)
    return dashboard.VariableModel(
        type_val=dashboard.VariableType.TEXTBOX,
        name=name,
        label=label,
        description=help_text,
        query=value,
        current=option,
        options=[option],
    )


def one_of(name: str, label: str, help_text: str, values: Sequence[str], chosen: str) -> dashboard.VariableModel:
    """One of fixed values."""
    options = [dashboard.VariableOption(selected=value == chosen, text=value, value=value) for value in values]
    return dashboard.VariableModel(
        type_val=dashboard.VariableType.CUSTOM,
        name=name,
        label=label,
        description=help_text,
        query=",".join(values),
        current=dashboard.VariableOption(selected=True, text=chosen, value=chosen),
        options=options,
    )


def _laid_out(rows: Sequence[Row]) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Give every panel an id and a place. Raises ValueError for a row wider than the screen."""
    placed: list[dashboard.Panel | dashboard.RowPanel] = []
    y = 0
    for row in rows:
        if sum(width for width, _ in row.panels) > COLUMNS:
            raise ValueError(f"the row {row.title!r} is wider than {COLUMNS} columns")
        place = dashboard.GridPos(h=1, w=COLUMNS, x=0, y=y)
        placed.append(dashboard.RowPanel(title=row.title, grid_pos=place, id_val=len(placed) + 1, panels=[]))
        x, y = 0, y + 1
        for width, panel in row.panels:
            panel.id_val, panel.grid_pos = len(placed) + 1, dashboard.GridPos(h=row.height, w=width, x=x, y=y)
            if isinstance(panel.options, timeseries.Options):
                panel.options.legend = fitting_legend(width)
            placed.append(panel)
            x += width
        y += row.height
    return placed


def _link(uid: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(
        title=BOARDS[uid].removeprefix("energyopt / "),
        type_val=dashboard.DashboardLinkType.LINK,
        icon="dashboard",
        url=f"/d/{uid}",
        keep_time=True,
        include_vars=True,
    )


def _without_noise(board: dict[str, Any]) -> dict[str, Any]:
    """Drop what the SDK writes and a newer Grafana has no field for: ``auto*`` on variables that are no intervals,
    ``expr`` on annotations, the footer of tables."""
    for variable in board["templating"]["list"]:
        for key in ("auto", "auto_min", "auto_count"):
            if variable["type"] != "interval":
                variable.pop(key, None)
    for annotation in board["annotations"]["list"]:
        annotation.pop("expr", None)
    for panel in board["panels"]:
        if panel["type"] == "table":
            panel["options"].pop("footer", None)
    return board

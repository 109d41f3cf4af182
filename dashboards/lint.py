"""What a board must not do, checked on its JSON: the same rules for the shipped boards and for a reader's own.

Needs ``promql-parser`` (extra ``grafana``). Whether SQL can be executed is asked of a function, because this package
knows no database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .catalog import UID
from .expression import Reader, Series, catalogue_series
from .units import Dimension, of_unit, written

COLUMNS = 24
_VARIABLE = re.compile(r"\$\{?(\w+)")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_FIXED_RANGE = re.compile(r"i?rate\([^\[]*\[\d")
_RELATION = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)", re.IGNORECASE)
_DIALECT = ("::", ";", "date_trunc", "strftime", "$__", "ilike", "json")

ExplainSql = Callable[[str], str | None]
"""Says why a query (with Grafana's variables replaced) cannot be executed, or None."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: in which board and panel, and what."""

    board: str
    panel: str
    problem: str

    def __str__(self) -> str:
        return f"{self.board}: {self.panel}: {self.problem}"


def lint_boards(
    boards: Sequence[Mapping[str, Any]], explain: ExplainSql | None = None, extra: Mapping[str, Series] | None = None
) -> list[Finding]:
    """All faults of these boards, alone and together. ``extra`` names series beside the catalogue's."""
    known = {**catalogue_series(), **(extra or {})}
    findings = [
        Finding(board.get("title", "?"), panel, problem)
        for board in boards
        for panel, problem in _board_problems(board, known, explain)
    ]
    for key in ("uid", "title"):
        seen = [board.get(key) for board in boards]
        repeated = sorted({str(value) for value in seen if seen.count(value) > 1})
        findings += [Finding(value, "board", f"another board has the same {key}") for value in repeated]
    return findings


def _board_problems(
    board: Mapping[str, Any], known: Mapping[str, Series], explain: ExplainSql | None
) -> Iterator[tuple[str, str]]:
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    if not UID.fullmatch(board.get("uid") or ""):
        yield "board", f"the uid {board.get('uid')!r} is not 1 to 40 letters, digits, - and _"
    if board.get("editable"):
        yield "board", "is editable: a provisioned board would lose what is changed by hand"
    yield from _layout_problems(board["panels"])
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    titles = [panel.get("title") for panel in panels]
    text = str(board)
    for name in variables:
        if not re.search(rf"\$\{{?{name}\b", text):
            yield "board", f"the variable {name!r} is used nowhere"
    for panel in panels:
        title = panel.get("title") or f"panel {panel.get('id')}"
        if titles.count(panel.get("title")) > 1:
            yield title, "another panel has the same title"
        for problem in _panel_problems(panel, variables, known, explain):
            yield title, problem


def _layout_problems(panels: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    ids = [panel.get("id") for panel in panels]
    if len(set(ids)) != len(ids) or not all(ids):
        yield "board", "has panels without an id, or with the same"
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place, title = panel["gridPos"], panel["title"]
        if place["x"] + place["w"] > COLUMNS:
            yield title, f"is wider than {COLUMNS} columns"
        cells = [
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        for other in sorted({taken[cell] for cell in cells if cell in taken}):
            yield title, f"lies over {other!r}"
        taken.update(dict.fromkeys(cells, title))


def _panel_problems(
    panel: Mapping[str, Any],
    variables: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, Series],
    explain: ExplainSql | None,
) -> Iterator[str]:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    if len(panel.get("description") or "") < 10:
        yield "has no help text"
    if not panel.get("targets"):
        yield "asks nothing"
        return
    if not defaults.get("noValue"):
        yield "does not say what is missing where it finds nothing"
    if not panel.get("pluginVersion"):
        yield "has no pluginVersion: Grafana would migrate its options from an older form"
    try:
        shown = of_unit(defaults.get("unit", ""))
    except ValueError as error:
        yield str(error)
        shown = None
    for target in panel["targets"]:
        yield from _source_problems(target, variables)
        if "expr" in target:
            yield from _promql_problems(panel, target, shown, known)
        else:
            yield from _sql_problems(target.get("rawSql") or target.get("rawQueryText") or "", explain)


def _source_problems(target: Mapping[str, Any], variables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    chosen = _VARIABLE.fullmatch(target["datasource"].get("uid", "").rstrip("}"))
    if chosen is None or variables.get(chosen[1], {}).get("type") != "datasource":
        yield "does not go through a data source variable"
    text = f"{target.get('expr', '')} {target.get('rawSql', '')} {target.get('rawQueryText', '')}"
    for name in sorted(set(_VARIABLE.findall(text))):
        if name not in variables and not name.startswith("__"):
            yield f"uses the variable ${name}, which the board lacks"


def _promql_problems(
    panel: Mapping[str, Any], target: Mapping[str, Any], shown: Dimension | None, known: Mapping[str, Series]
) -> Iterator[str]:
    reader, text = Reader(known), target["expr"]
    value = reader.read(text)
    yield from reader.problems
    if _FIXED_RANGE.search(text):
        yield "takes a rate over a fixed range instead of $__rate_interval"
    if "{" in text and "job" not in text:
        yield "does not select by job"
    labels = _LEGEND.findall(target.get("legendFormat") or "")
    absent = set() if value.labels is None else set(labels) - value.labels
    yield from (f"has the label {name!r} in its legend but not in its result" for name in sorted(absent))
    if panel["type"] not in ("table", "heatmap") and shown is not None and value.dimension not in (None, shown):
        yield f"shows {written(value.dimension)} as {written(shown)}"


def _sql_problems(sql: str, explain: ExplainSql | None) -> Iterator[str]:
    if not sql.startswith("SELECT "):
        yield "is no SELECT"
    for relation in _RELATION.findall(sql):
        if not relation.startswith("energyopt_v_"):
            yield f"reads {relation!r}, which is none of the views"
    yield from (f"uses {word!r}, which not every database knows" for word in _DIALECT if word in sql.lower())
    refused = explain(_VARIABLE_IN_SQL.sub("'x'", sql)) if explain is not None else None
    if refused is not None:
        yield f"is refused by the database: {refused}"


_VARIABLE_IN_SQL = re.compile(r"\$\{\w+(?::\w+)?\}")

"""Reads a PromQL expression against the catalogue: do its series and labels exist, are its rates taken from counters,
and what are its labels and its unit?

Needs ``promql-parser`` (extra ``grafana``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import promql_parser as promql

from telemetry.catalog import CATALOG

from .promql import TARGET_LABELS
from .units import Dimension, of_metric, times, written

COUNTING = {"rate": -1, "irate": -1, "increase": 0}
"""Functions over counters, with the power of seconds that they bring."""

UNTIMED = {"sort", "sort_desc", "abs", "ceil", "floor", "round", "clamp_min", "clamp_max", "scalar"}
_VARIABLE = re.compile(r"\$\{?(\w+)(?::\w+)?\}?")
_DURATIONS = {"__rate_interval": "5m", "__range": "1h", "__interval": "1m"}


@dataclass(frozen=True, slots=True)
class Series:
    """One name that a query may select. ``labels`` None: any."""

    counter: bool
    labels: frozenset[str] | None
    dimension: Dimension | None


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression yields: its labels (None: unknown) and its unit; ``bare`` for a number without series."""

    labels: frozenset[str] | None
    dimension: Dimension | None
    bare: bool = False


@dataclass(slots=True)
class Reader:
    """Reads expressions; ``problems`` collects what is wrong with them."""

    known: Mapping[str, Series]
    problems: list[str] = field(default_factory=list)

    def read(self, text: str) -> Value:
        """Check one expression. A text that does not parse is a problem too."""
        try:
            tree = promql.parse(_VARIABLE.sub(lambda match: _DURATIONS.get(match[1], "1"), text))
        except ValueError as error:
            self.problems.append(f"does not parse: {error}")
            return Value(None, None)
        return self._value(tree)

    def _value(self, node: Any) -> Value:
        kinds = {
            promql.NumberLiteral: lambda node: Value(frozenset(), None, bare=True),
            promql.StringLiteral: lambda node: Value(frozenset(), None, bare=True),
            promql.ParenExpr: lambda node: self._value(node.expr),
            promql.UnaryExpr: lambda node: self._value(node.expr),
            promql.SubqueryExpr: lambda node: self._value(node.expr),
            promql.VectorSelector: lambda node: self._selected(node, counting=False),
            promql.MatrixSelector: lambda node: self._selected(node.vector_selector, counting=False),
            promql.AggregateExpr: self._aggregated,
            promql.BinaryExpr: self._combined,
            promql.Call: self._called,
        }
        return kinds[type(node)](node)

    def _selected(self, node: promql.VectorSelector, *, counting: bool) -> Value:
        series = self.known.get(node.name or "")
        if series is None:
            self.problems.append(f"selects {node.name!r}, which is not in the catalogue")
            return Value(None, None)
        if series.counter != counting:
            self.problems.append(
                f"takes the value of the counter {node.name}" if series.counter else f"takes a rate of {node.name}"
            )
        if series.labels is None:
            return Value(None, series.dimension)
        labels = series.labels | set(TARGET_LABELS)
        self._need((matcher.name for matcher in node.matchers.matchers), labels, f"{node.name} has no label")
        return Value(labels, series.dimension)

    def _called(self, node: promql.Call) -> Value:
        name, arguments = node.func.name, node.args
        if name in COUNTING and isinstance(arguments[0], promql.MatrixSelector):
            found = self._selected(arguments[0].vector_selector, counting=True)
            return Value(found.labels, times(found.dimension, {"s": 1}, COUNTING[name]))
        if name == "histogram_quantile":
            return self._quantile(arguments[1])
        values = [self._value(argument) for argument in arguments]
        if name == "vector":
            return Value(frozenset(), None)
        vector = next((value for value in values if not value.bare), Value(frozenset(), None))
        return vector if name in UNTIMED or name.endswith("_over_time") else Value(vector.labels, {})

    def _quantile(self, node: Any) -> Value:
        """The value of a quantile is in the unit of the histogram, which its ``_sum`` has."""
        inner = self._value(node)
        if inner.labels is not None and "le" not in inner.labels:
            self.problems.append("takes a quantile of something without the label 'le'")
        names = re.findall(r"([\w:]+)_bucket", str(node))
        whole = self.known.get(f"{names[0]}_sum") if names else None
        labels = None if inner.labels is None else inner.labels - {"le"}
        return Value(labels, whole.dimension if whole else None)

    def _aggregated(self, node: promql.AggregateExpr) -> Value:
        inner = self._value(node.expr)
        listed = frozenset(node.modifier.labels) if node.modifier else frozenset[str]()
        self._need(listed, inner.labels, f"{node.op} by a label that is not there:")
        without = node.modifier is not None and node.modifier.type == promql.AggModifierType.Without
        kept = None if inner.labels is None else inner.labels - listed
        labels = inner.labels if str(node.op) in ("topk", "bottomk") else kept if without else listed
        return Value(labels, {} if str(node.op) in ("count", "group") else inner.dimension)

    def _combined(self, node: promql.BinaryExpr) -> Value:
        left, right = self._value(node.lhs), self._value(node.rhs)
        op, modifier = str(node.op), node.modifier
        if modifier is not None and modifier.matching is not None:
            for side in (left, right):
                self._need(modifier.matching.labels, side.labels, "matches on a label that is not there:")
        if op in ("*", "/"):
            neutral: Dimension = {}
            sides = [neutral if side.bare else side.dimension for side in (left, right)]
            dimension = times(sides[0], sides[1], 1 if op == "*" else -1)
        else:
            dimension = self._same(op, left, right)
            dimension = {} if modifier is not None and modifier.return_bool else dimension
        vector = right if left.bare else left
        labels = vector.labels
        if op == "or" and left.labels is not None and right.labels is not None:
            labels = left.labels | right.labels
        return Value(labels, dimension, bare=left.bare and right.bare)

    def _same(self, op: str, left: Value, right: Value) -> Dimension | None:
        """Adding, comparing and uniting need one unit; ``and`` and ``unless`` only select."""
        known = left.dimension is not None and right.dimension is not None
        if op not in ("and", "unless") and known and left.dimension != right.dimension:
            self.problems.append(f"{written(left.dimension)} {op} {written(right.dimension)} mixes units")
        return left.dimension if left.dimension is not None else right.dimension

    def _need(self, wanted: Iterable[str], there: frozenset[str] | None, problem: str) -> None:
        missing = set() if there is None else set(wanted) - there
        self.problems.extend(f"{problem} {name!r}" for name in sorted(missing))


def catalogue_series() -> dict[str, Series]:
    """Every name that a scrape of this project can yield."""
    found = {}
    for metric in CATALOG:
        labels = frozenset(metric.labels)
        if metric.kind != "histogram":
            found[metric.name] = Series(metric.kind == "counter", labels, of_metric(metric))
            continue
        for ending in ("_bucket", "_count", "_sum"):
            own = labels | ({"le"} if ending == "_bucket" else set())
            found[metric.name + ending] = Series(True, own, of_metric(metric, ending))
    return found

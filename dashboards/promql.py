"""PromQL over the metric catalogue: a metric, label or kind that does not exist is refused while a query is built.

Knows how series are named and labelled; does not know boards, alerts or a server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from telemetry.catalog import Metric

TARGET_LABELS = ("cluster", "job", "instance")
"""What a scrape adds to every series. ``cluster`` is optional: an absent label matches ``.*``."""

ENGINE = ", ".join(TARGET_LABELS)
"""``by`` and ``on`` clause that keeps series of one process together."""

_LABEL = re.compile(r"([A-Za-z_]\w*)\s*(?:=~|!~|!=|=)")
_HISTOGRAM_SERIES = ("_bucket", "_count", "_sum")


@dataclass(frozen=True, slots=True)
class PromQl:
    """Builds queries. ``scope`` is a list of matchers put into every selector, ``window`` the range of every rate.

    All methods raise ValueError for a metric of the wrong kind and for a matcher whose label the metric lacks.
    """

    scope: str = ""
    window: str = "$__rate_interval"

    def gauge(self, metric: Metric, *matchers: str) -> str:
        """The selector of a gauge."""
        if metric.kind != "gauge":
            raise ValueError(f"{metric.name} is a {metric.kind}: take its rate or increase")
        return self._select(metric, metric.name, matchers)

    def rate(self, metric: Metric, *matchers: str, series: str = "", window: str = "") -> str:
        """Increase per second of a counter, or of one series (``_bucket``, ``_count``, ``_sum``) of a histogram."""
        return f"rate({self._counter(metric, matchers, series)}[{window or self.window}])"

    def increase(self, metric: Metric, *matchers: str, series: str = "", window: str = "") -> str:
        """Increase over the window, in the counter's unit."""
        return f"increase({self._counter(metric, matchers, series)}[{window or self.window}])"

    def quantile(self, q: float, metric: Metric, *matchers: str, by: str = "") -> str:
        """A quantile of a histogram over the window, per ``by``."""
        if metric.kind != "histogram":
            raise ValueError(f"{metric.name} is a {metric.kind}, not a histogram")
        labels = f"le, {by}" if by else "le"
        return f"histogram_quantile({q:g}, sum by ({labels}) ({self.rate(metric, *matchers, series='_bucket')}))"

    def _counter(self, metric: Metric, matchers: tuple[str, ...], series: str) -> str:
        fits = series in _HISTOGRAM_SERIES if metric.kind == "histogram" else metric.kind == "counter" and not series
        if not fits:
            raise ValueError(f"{metric.name}{series} is no counter: {metric.name} is a {metric.kind}")
        return self._select(metric, metric.name + series, matchers)

    def _select(self, metric: Metric, name: str, matchers: tuple[str, ...]) -> str:
        known = {*metric.labels, *TARGET_LABELS, *(("le",) if name.endswith("_bucket") else ())}
        for matcher in matchers:
            unknown = set(_LABEL.findall(matcher)) - known
            if unknown or not _LABEL.match(matcher):
                raise ValueError(f"{metric.name} has no label for {matcher!r}; it has {', '.join(sorted(known))}")
        inside = ",".join(part for part in (self.scope, *matchers) if part)
        return f"{name}{{{inside}}}" if inside else name


def either(left: str, right: str) -> str:
    """Series of both sides, also where one side has none (a host without GPUs, a GPU box whose RAPL is closed)."""
    return f"({left} or {right})"


def ratio(top: str, bottom: str) -> str:
    """``top`` per ``bottom``; no value where the denominator is 0, rather than an infinity."""
    return f"{top} / ({bottom} > 0)"

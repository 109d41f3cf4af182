"""From a catalogue entry and values to what prometheus_client renders."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from .catalog import Metric

Values = Mapping[tuple[str, ...], float]
"""Values by labels, in the order of the metric's labels."""


def family(metric: Metric, values: Values) -> CounterMetricFamily | GaugeMetricFamily:
    """A counter or gauge with its series; without values it has none, and nothing is published but its name."""
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    made = kind(metric.family, metric.help, labels=metric.labels)
    for labels, value in values.items():
        made.add_metric(list(labels), value)
    return made

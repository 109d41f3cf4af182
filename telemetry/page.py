"""A page of metrics as numbers: what a Prometheus server would read, for screens that have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from energyopt.core.errors import SensorError
from energyopt.core.units import Seconds

from .metric import Metric

Labels = Mapping[str, str]
MAX_SAMPLES = 200_000


@dataclass(frozen=True, slots=True)
class Page:
    """Samples by name, read at a time of the reader's clock."""

    at: Seconds
    samples: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)

    def of(self, metric: Metric, **labels: str) -> Iterator[tuple[Labels, float]]:
        """Every sample of a counter or gauge that has these labels."""
        for found, value in self.samples.get(metric.name, ()):
            if all(found.get(name) == wanted for name, wanted in labels.items()):
                yield found, value

    def total(self, metric: Metric, **labels: str) -> float | None:
        """The sum over those samples; None if there is none."""
        values = [value for _, value in self.of(metric, **labels)]
        return sum(values) if values else None

    def first(self, metric: Metric, label: str, words: tuple[str, ...], **labels: str) -> float | None:
        """The sample whose ``label`` is the first of ``words`` that there is; None if there is none."""
        values = {found.get(label): value for found, value in self.of(metric, **labels)}
        return next((values[word] for word in words if word in values), None)


def parse_page(text: str, at: Seconds) -> Page:
    """Raises SensorError for a text that is no page of metrics, or too long a one."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    count = 0
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                count += 1
                if count > MAX_SAMPLES:
                    raise SensorError(f"The page holds more than {MAX_SAMPLES} samples.")
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as error:  # what the parser raises for a line that is none
        raise SensorError(f"This is no page of metrics: {error}.") from error
    return Page(at, {name: tuple(found) for name, found in samples.items()})

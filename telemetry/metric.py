"""One family of metrics: name, kind, labels, help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "energyopt_"
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. ``name`` is as scraped: counters end in ``_total``. ``buckets`` are a histogram's upper bounds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """The name that client libraries want: without a counter's ending."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name


def own(name: str, kind: Kind, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    """A metric of this project's own, under its prefix."""
    return Metric(PREFIX + name, kind, text, labels, buckets)

"""The report of a benchmark: one HTML page that needs nothing else."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, StrictUndefined

from .compare import Difference
from .result import BenchResult
from .rows import (
    LATENCY_HEAD,
    agentx_words,
    client_words,
    difference_rows,
    energy_words,
    figure_rows,
    latency_rows,
    pool_words,
    source_words,
)


def report_html(result: BenchResult, against: list[Difference], *, version: str) -> str:
    """The whole page; every text from outside is escaped."""
    template = (resources.files(__package__) / "report.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        result=result,
        version=version,
        latency_head=LATENCY_HEAD,
        latencies=latency_rows(result),
        figures=figure_rows(result),
        energy=energy_words(result),
        pools=pool_words(result),
        agentx=agentx_words(result),
        sources=source_words(result),
        client=client_words(result),
        differences=difference_rows(against),
        bars=_bars([one.output_tokens / one.seconds for one in result.slices]),
    )


def _bars(values: list[float]) -> list[tuple[float, float]]:
    """Values with their heights from 0 to 100."""
    top = max(values, default=0.0) or 1.0
    return [(value, 100 * value / top) for value in values]

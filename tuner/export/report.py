"""The report of a study: one HTML file that needs nothing else, with the Pareto picture inside it."""

from __future__ import annotations

import base64
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from energyopt.core.units import format_figure, format_si

from ..summary import StudySummary
from .picture import objective_label, pareto_png


def report_html(summary: StudySummary, *, command: str, version: str) -> str:
    """The page as text. Every value is escaped; unknown figures are a dash; estimated joules say so at the top."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["si"] = format_si
    environment.filters["percent"] = format_percent
    environment.filters["figure"] = format_figure
    source = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    picture = base64.b64encode(pareto_png(summary)).decode("ascii")
    return environment.from_string(source).render(
        s=summary,
        spec=summary.study.spec,
        picture=picture,
        objective=objective_label(summary),
        command=command,
        version=version,
    )


def format_percent(value: float | None, digits: int = 1) -> str:
    """``0.123`` -> ``12.3 %``; unknown is a dash."""
    return "—" if value is None else f"{value * 100:.{digits}f} %"

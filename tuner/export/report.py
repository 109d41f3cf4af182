"""The report of a study: one HTML file that needs nothing else, with the Pareto picture inside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Protocol

from jinja2 import Environment, StrictUndefined

from energyopt.core.units import format_figure, format_si

from ..references import Reference
from ..saved import DailySaving
from ..summary import StudySummary
from ..why import KnobWorth
from .history import history_png
from .picture import objective_label, pareto_png


class Launch(Protocol):
    """How the winner is started: a line for a shell or None, and what to know of it."""

    @property
    def shell(self) -> str | None: ...

    @property
    def remark(self) -> str: ...


def report_html(
    summary: StudySummary,
    *,
    launching: Launch,
    version: str,
    worths: Sequence[KnobWorth] = (),
    saved: DailySaving | None = None,
    references: Sequence[Reference] = (),
    pictures: Mapping[str, bytes] | None = None,
) -> str:
    """The page as text, with its ``pictures`` (as ``draw`` makes them, which it does unless they are given).

    Every value is escaped; unknown figures are a dash; estimated joules say so at the top.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["si"] = format_si
    environment.filters["percent"] = format_percent
    environment.filters["figure"] = format_figure
    source = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    drawn = pictures or draw(summary, references)
    return environment.from_string(source).render(
        s=summary,
        spec=summary.study.spec,
        picture=_embedded(drawn["pareto.png"]),
        history=_embedded(drawn["history.png"]),
        objective=objective_label(summary),
        launching=launching,
        worths=worths,
        saved=saved,
        references=references,
        version=version,
    )


def draw(summary: StudySummary, references: Sequence[Reference] = ()) -> dict[str, bytes]:
    """The pictures of a study, by their names as files."""
    return {"pareto.png": pareto_png(summary), "history.png": history_png(summary, references)}


def _embedded(png: bytes) -> str:
    return base64.b64encode(png).decode("ascii")


def format_percent(value: float | None, digits: int = 1) -> str:
    """``0.123`` -> ``12.3 %``; unknown is a dash."""
    return "—" if value is None else f"{value * 100:.{digits}f} %"

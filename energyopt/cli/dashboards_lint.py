"""``energyopt dashboards lint``: what is wrong with boards, before anyone looks at them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from energyopt.core.errors import ConfigError

try:
    from energyopt.compose.dashboards_lint import lint_dashboards
except ModuleNotFoundError as error:
    raise ConfigError("`dashboards lint` reads PromQL with promql-parser: install energyopt[grafana].") from error

from .output import print_json, result_console


def lint(
    folder: Annotated[Path | None, typer.Argument(help="Boards as *.json; default: those of this version.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check queries, units, labels, layout and texts of boards."""
    findings = lint_dashboards(folder)
    if as_json:
        print_json({"ok": not findings, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            result_console().print(str(finding), markup=False, soft_wrap=True)
    if findings:
        raise ConfigError(f"Faults in the boards: {len(findings)}.")
    if not as_json:
        result_console().print("No fault found.")

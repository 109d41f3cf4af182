"""``energyopt doctor``: what works on this machine, and why not where it does not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from energyopt.compose.doctor import Check, diagnose
from energyopt.core.errors import ConfigError

from .output import print_json, result_console

MARKS = {"ok": "[green]✓ ok[/]", "limited": "[yellow]! limited[/]", "broken": "[bold red]✗ broken[/]"}


def doctor(
    db: Annotated[str | None, typer.Option("--db", help="Database to check: a path or URL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what works on this machine: engine, meters, power limits, database, own packages."""
    checks = diagnose(db)
    broken = [check for check in checks if check.state == "broken"]
    if as_json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        result_console().print(doctor_table(checks))
    if broken:
        raise ConfigError(f"{len(broken)} of {len(checks)} checks failed: {', '.join(c.name for c in broken)}.")


def doctor_table(checks: list[Check]) -> Table:
    """One line a check; what to do stands below what was found."""
    table = Table(title="energyopt doctor", title_justify="left", header_style="bold", show_lines=False)
    table.add_column("what")
    table.add_column("state", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        fix = "" if check.fix is None else f"\n[dim]→ {escape(check.fix)}[/]"
        table.add_row(check.name, MARKS[check.state], escape(check.detail) + fix)
    return table

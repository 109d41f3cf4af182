"""Command lines of files and pages, judged by the real tree of verbs; nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from energyopt.cli.main import build_app


def parse(words: Sequence[str]) -> None:
    """Raises what Typer raises where ``energyopt WORDS`` has no meaning."""
    command: Any = typer.main.get_command(build_app(list(words)))
    context = command.make_context("energyopt", list(words))
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)

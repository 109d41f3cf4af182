"""The ``energyopt`` command, and the one place where errors become exit codes.

Exit codes: 0 done, 1 something failed, 2 wrong usage, 3 no feasible configuration, 130 interrupted. No traceback
reaches a user unless ``--debug`` is given before the verb.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from energyopt import __version__
from energyopt.compose.threads import calm_threads
from energyopt.core.errors import EnergyoptError

from .output import message_console, print_error
from .verbs import add_verbs

FOREIGN = ("measure",)
"""Verbs that run somebody else's program, which gets the environment as it was found."""

FIRST = (
    "First: [bold]energyopt doctor[/] says what works here, [bold]energyopt tune smollm2-135m --quick[/] tunes a small "
    "model in five minutes, [bold]energyopt measure -- COMMAND[/] tells the joules of anything."
)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command tree for one command line."""
    app = typer.Typer(
        name="energyopt",
        help="Measure, cap and tune the energy of LLM inference: tokens per joule under a latency SLO.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        epilog=FIRST,
    )
    app.callback()(root)
    add_verbs(app, arguments)
    return app


def _version(value: bool) -> None:
    if value:
        typer.echo(f"energyopt {__version__}")
        raise typer.Exit


def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options that stand before the verb."""


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if not any(word in FOREIGN for word in own):
        calm_threads(os.environ)
    try:
        build_app(arguments)()
    except EnergyoptError as error:
        if debug:
            traceback.print_exc()
        print_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; there is nobody to tell
        sys.exit(1)
    except Exception as error:  # the last border: a fault of ours must still end in one sentence
        if debug:
            raise
        message_console().print(
            f"internal error: {type(error).__name__}: {error}\nThis is a fault of energyopt; "
            "run `energyopt --debug ...` again to see where.",
            markup=False,
            soft_wrap=True,
        )
        sys.exit(1)

"""Runs a stored study with a progress bar and prints its outcome: the end of both ``tune`` and ``studies resume``."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator

import typer

from energyopt.compose.results import Session, objective_unit
from energyopt.compose.study import run_study
from energyopt.core.errors import NoFeasibleError

from .output import message_console, print_json, result_console
from .progress import StudyBar
from .verdict import print_outcome, summary_json


def run_and_print(session: Session, study_id: str, *, as_json: bool) -> None:
    """Raises NoFeasibleError after its outcome was printed, and whatever broke; SIGINT and SIGTERM exit with 130."""
    console = message_console()
    nothing: NoFeasibleError | None = None
    with sigterm_interrupts(), StudyBar(console, objective_unit(session, study_id)) as bar:
        try:
            run_study(session, study_id, bar.update)
        except NoFeasibleError as error:
            nothing = error
        except KeyboardInterrupt:
            message = f"Interrupted. Nothing finished is lost: energyopt studies resume {study_id}"
            console.print(message, markup=False, soft_wrap=True)
            raise typer.Exit(130) from None
    if as_json:
        print_json(summary_json(session, study_id))
    else:
        print_outcome(result_console(), session, study_id)
    if nothing is not None:
        raise nothing


@contextlib.contextmanager
def sigterm_interrupts() -> Generator[None]:
    """Let SIGTERM end a study as Ctrl-C does, with limits put back and the lease given up, instead of at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, found)

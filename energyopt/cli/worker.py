"""``energyopt worker``: run the studies that were submitted to a service, on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from energyopt.compose.run_worker import WorkerRequest, run_worker

from .output import message_console
from .run import sigterm_interrupts


def worker(
    db: Annotated[
        str | None, typer.Option("--db", envvar="ENERGYOPT_DB", help="The service's database: a path or URL.")
    ] = None,
    out: Annotated[Path | None, typer.Option(envvar="ENERGYOPT_OUT", help="Folder of reports and logs.")] = None,
    slot: Annotated[
        int, typer.Option(min=0, max=63, help="Workers of one host need different ones, and different devices.")
    ] = 0,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
) -> None:
    """Take submitted studies one at a time and run them. Stop with Ctrl-C: nothing finished is lost."""
    console = message_console()
    request = WorkerRequest(db=db, out=out, slot=slot, attached=attached)
    with sigterm_interrupts():
        try:
            run_worker(request, lambda line: console.print(line, markup=False, soft_wrap=True))
        except KeyboardInterrupt:
            console.print("Stopped. Nothing finished is lost; the next worker goes on.")
            raise typer.Exit(130) from None

"""``energyopt worker``: measure the studies that were submitted to a service, on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from energyopt.compose.run_worker import WorkerRequest, run_worker
from energyopt.core.config import DeviceKind

from .output import message_console
from .remote import Key
from .run import sigterm_interrupts


def worker(
    db: Annotated[
        str | None, typer.Option("--db", envvar="ENERGYOPT_DB", help="The service's database: a path or URL.")
    ] = None,
    api: Annotated[
        str | None,
        typer.Option("--api", metavar="URL", help="Measure trials of a service by HTTP, without its database."),
    ] = None,
    key: Key = None,
    out: Annotated[Path | None, typer.Option(envvar="ENERGYOPT_OUT", help="Folder of reports and logs.")] = None,
    slot: Annotated[
        int, typer.Option(min=0, max=63, help="Workers of one host need different ones, and different devices.")
    ] = 0,
    device: Annotated[DeviceKind, typer.Option(help="What to measure on: every device of the kind that is seen.")] = (
        "auto"
    ),
    conduct: Annotated[
        bool, typer.Option("--conduct", help="Only lead studies of the database, for workers elsewhere.")
    ] = False,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
) -> None:
    """Take submitted studies and measure their trials. Stop with Ctrl-C: nothing finished is lost.

    With the database at hand a worker leads one study at a time, and helps with others while none waits. With --api it
    measures what the service gives out. Up to four workers measure one study side by side.
    """
    console = message_console()
    request = WorkerRequest(
        db=db, api=api, key=key, out=out, slot=slot, device=device, conduct=conduct, attached=attached
    )
    with sigterm_interrupts():
        try:
            run_worker(request, lambda line: console.print(line, markup=False, soft_wrap=True))
        except KeyboardInterrupt:
            console.print("Stopped. Nothing finished is lost; the next worker goes on.")
            raise typer.Exit(130) from None

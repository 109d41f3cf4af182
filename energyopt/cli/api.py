"""``energyopt api``: the service for tuning jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from energyopt.compose.job_service import PORT, ApiRequest, run_api

from .output import message_console


def api(
    host: Annotated[str, typer.Option(help="Address to listen on; others than this host's need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    db: Annotated[
        str | None,
        typer.Option("--db", envvar="ENERGYOPT_DB", help="Database: a path or URL. Default: the user's own."),
    ] = None,
    out: Annotated[Path | None, typer.Option(envvar="ENERGYOPT_OUT", help="Folder of reports and logs.")] = None,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Worker processes on this host; 0: elsewhere.")] = 1,
    remote_workers: Annotated[
        bool, typer.Option("--remote-workers", help="Lead studies here, for `energyopt worker --api` on other hosts.")
    ] = False,
    model_root: Annotated[
        list[Path] | None, typer.Option(help="Folder that models may be read from; repeat for several.")
    ] = None,
    allow_kv_transfer: Annotated[
        bool, typer.Option("--allow-kv-transfer", help="Let studies say how engines exchange blocks over the network.")
    ] = False,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate for HTTPS (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Answer anybody, without keys, on any address.")] = False,
) -> None:
    """Serve studies over HTTP: submit, watch, and take the recommendation. Stop with Ctrl-C; running studies go on."""
    console = message_console()
    request = ApiRequest(
        host=host,
        port=port,
        db=db,
        out=out,
        workers=workers,
        remote_workers=remote_workers,
        insecure=insecure,
        model_roots=tuple(model_root or ()),
        kv_transfers=allow_kv_transfer,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
    )
    run_api(request, lambda line: console.print(line, markup=False, soft_wrap=True))

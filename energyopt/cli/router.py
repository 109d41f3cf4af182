"""``energyopt router``: one address before several engines, which sends each request where it costs least."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from energyopt.compose.router import PORT, RouterRequest, RouterState, router_settings, run_router

from .output import message_console, print_json


def router(
    backend: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="An engine, such as http://gpu1:8000; repeat for several.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML or JSON with all settings; options given here come before it.")
    ] = None,
    policy: Annotated[
        Literal["round-robin", "least-loaded", "prefix", "session"] | None,
        typer.Option(help="How a backend is chosen. Default: prefix."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ENERGYOPT_ROUTER_API_KEY", help="Clients must send it; backends do not see it."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed breaks ties in another way.")] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="Other backends tried before the first byte.")] = None,
    max_queue: Annotated[int | None, typer.Option(min=0, help="Requests that may wait for a place.")] = None,
    queue_seconds: Annotated[float | None, typer.Option(min=0, help="How long each may wait.")] = None,
    joules_weight: Annotated[
        float | None, typer.Option(min=0, help="Prompt tokens that one joule is worth; 0 leaves energy out.")
    ] = None,
    kv_events: Annotated[
        bool | None, typer.Option("--kv-events/--no-kv-events", help="Follow engines' cache events. Default: yes.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate for HTTPS (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document once it serves.")] = False,
) -> None:
    """Route requests to several engines (energyopt, vLLM, SGLang, any OpenAI endpoint), byte for byte.

    Stop with Ctrl-C or SIGTERM; running requests end first.
    """
    given = {
        "policy": policy,
        "api_key": api_key,
        "seed": seed,
        "retries": retries,
        "max_queue": max_queue,
        "queue_seconds": queue_seconds,
        "joules_weight": joules_weight,
        "kv_events": kv_events,
    }
    settings = router_settings(config, backend or (), given)
    request = RouterRequest(router=settings, host=host, port=port, tls_certificate=tls_certificate, tls_key=tls_key)
    console = message_console()

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    def ready(state: RouterState) -> None:
        if as_json:
            print_json(state.model_dump())
            sys.stdout.flush()
        count = len(state.backends)
        say(
            f"{state.policy} routing to {count} backend{'' if count == 1 else 's'} on {state.url}/v1; "
            f"their state: {state.url}/router/backends (stop with Ctrl-C)"
        )

    run_router(request, notify=say, on_ready=ready)
    say("stopped")

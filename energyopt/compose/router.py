"""Builds the router: settings from options and a file, on a socket that is taken first."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import Field

from api.router.router import Router
from api.router.server import RouterServer
from api.router.settings import RouterConfig
from api.serve import bind, tls_files
from energyopt.core.config import Config, parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.files import read_bounded

PORT = 8080
MAX_FILE_BYTES = 1 << 20
_GARBAGE = (20_000, 20, 50)
"""Objects made between two looks for garbage, about thirty requests' worth: nearly all of a request's own go by
counting, and at the usual 700 every second request would be held up by a look."""


class RouterRequest(Config):
    """What ``energyopt router`` was asked."""

    router: RouterConfig
    host: str = "127.0.0.1"
    port: int = Field(PORT, ge=0, le=65535)
    tls_certificate: Path | None = None
    tls_key: Path | None = None


class RouterState(Config):
    """What a started router is: where it answers, how it chooses, and before which backends."""

    url: str
    policy: str
    backends: tuple[str, ...]


def router_settings(file: Path | None, backends: Sequence[str], given: Mapping[str, object]) -> RouterConfig:
    """The file's settings, with what was ``given`` on the command line in their place; ``backends`` are addresses.

    Raises ConfigError: nothing names a backend, or a key or value is not allowed.
    """
    settings = {} if file is None else read_settings(file)
    settings.update({name: value for name, value in given.items() if value is not None})
    if backends:
        settings["backends"] = [{"url": url} for url in backends]
    if not settings.get("backends"):
        raise ConfigError(
            "No backend is named: give each engine's address, such as --backend http://127.0.0.1:8000, or a --config "
            "file with backends."
        )
    return parse_config(RouterConfig, settings)


def read_settings(file: Path) -> dict[str, object]:
    """A mapping from a YAML or JSON file. Raises ConfigError."""
    raw = read_bounded(file, MAX_FILE_BYTES, what="configuration")
    try:
        document = yaml.safe_load(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"The configuration {file} cannot be read: {error}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"The configuration {file} is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(document, dict):
        raise ConfigError(f"The configuration {file} holds no settings: expected keys such as backends and policy.")
    return {str(key): value for key, value in document.items()}


def run_router(
    request: RouterRequest, *, notify: Callable[[str], None], on_ready: Callable[[RouterState], None]
) -> None:
    """Serve until SIGINT or SIGTERM; running requests then have their grace. Raises ConfigError."""
    tls = tls_files(request.tls_certificate, request.tls_key)
    router = Router(request.router)
    with bind(request.host, request.port) as listener:
        host, port = listener.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        url = f"{'https' if tls else 'http'}://{name}:{port}"
        state = RouterState(
            url=url, policy=request.router.policy, backends=tuple(one.url for one in request.router.backends)
        )
        for line in notices(request):
            notify(line)
        gc.collect()
        gc.freeze()  # what was imported stays; looking through it again would hold every stream up
        gc.set_threshold(*_GARBAGE)
        RouterServer(router, on_ready=lambda: on_ready(state), tls=tls).run(sockets=[listener])


def notices(request: RouterRequest) -> list[str]:
    """What the person who started it may not have meant."""
    config, said = request.router, []
    if config.joules_weight and any(one.joules_per_token is None for one in config.backends):
        said.append("joules_weight counts only backends with joules_per_token: some have none and look free")
    if request.host not in ("127.0.0.1", "localhost", "::1") and config.api_key is None:
        said.append(f"{request.host} lets others in without a key: --api-key asks for one")
    said += [f"{one.name}: certificates are not verified" for one in config.backends if not one.verify]
    return said

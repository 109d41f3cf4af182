"""Running an application on a socket until a signal says stop. It prints nothing and loads nothing.

``bind`` comes first, before a model is loaded: a port in use is then an error of the first second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

_log = logging.getLogger(__name__)

KEEP_ALIVE = 75
"""Seconds an idle connection is kept: longer than common clients' pools, which would else race against our close."""

_LAST_RESORT = 5.0
"""Seconds between aborting the requests that are left and cutting their connections."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at once, so that early clients wait instead of being refused. Port 0 takes a free one.

    Raises ConfigError when the port is taken or not allowed, or the host is not one of this machine's addresses.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port = {port} is not allowed: it must be between 0 and 65535.")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host = {host!r} cannot be resolved: {error}.") from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(_refusal(error, host, port)) from error
    listener.setblocking(False)
    return listener


def _refusal(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} on {host!r} is in use: stop the other program, or choose another port (0: any)."
        case errno.EACCES | errno.EPERM:
            return f"Port {port} on {host!r} needs a permission this process lacks: choose one above 1023."
        case errno.EADDRNOTAVAIL:
            return f"host = {host!r} is not an address of this machine."
    return f"Cannot listen on {host!r}, port {port}: {error.strerror}."


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a certificate and its key, in PEM."""

    certificate: Path
    key: Path


def tls_files(certificate: Path | None, key: Path | None) -> Tls | None:
    """Both files, or None where neither is named. Raises ConfigError for one alone, or one that is no file."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both a certificate and its key.")
    for path in (certificate, key):
        if not path.is_file():
            raise ConfigError(f"{path} is no file with a certificate or a key.")
    return Tls(certificate, key)


class Server(uvicorn.Server):
    """Uvicorn that ends a request which outlives the grace with a typed error instead of cutting its connection.

    ``serve`` of a thread other than the main one installs no signal handlers; ``stop`` ends it from anywhere.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        grace: Seconds,
        abort: Callable[[], None],
        on_ready: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
        tls: Tls | None = None,
    ) -> None:
        limit = math.ceil(grace + _LAST_RESORT)
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=limit,
                ssl_certfile=None if tls is None else tls.certificate,
                ssl_keyfile=None if tls is None else tls.key,
            )
        )
        self._grace = grace
        self._abort = abort
        self._on_ready, self._on_stop = on_ready, on_stop

    def stop(self) -> None:
        """Ask for the end, from any thread; running requests still get their grace."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        ending = asyncio.create_task(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    async def _end_requests(self) -> None:
        await asyncio.sleep(self._grace)
        _log.warning("requests still run after %g s of grace: they are ended", self._grace)
        await asyncio.to_thread(self._abort)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stop on the first signal, at once on the second. Uvicorn's own version raises the signal again at the end,
        which would kill the process before its caller has put power limits back."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        found = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in found.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    grace: Seconds = Seconds(30.0),
    abort: Callable[[], None],
    on_ready: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
    tls: Tls | None = None,
) -> None:
    """Serve ``app`` on ``listener`` until SIGINT or SIGTERM; blocks, and returns normally after either.

    On a signal nothing new is accepted and running requests get ``grace`` to finish. Then ``abort`` is called once,
    on a thread: it must end every running request (``ServingEngine.close`` does). A second signal skips the wait.
    ``on_stop`` is called when the signal has come: it ends what would never end by itself.
    """
    Server(app, grace=grace, abort=abort, on_ready=on_ready, on_stop=on_stop, tls=tls).run(sockets=[listener])

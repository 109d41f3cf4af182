"""The agent's pages over HTTP: a small server for scrapers, with bounds on everything that a client can hold."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from energyopt.core.errors import ConfigError

App = Callable[[dict[str, Any], Any], Iterable[bytes]]

MAX_CONNECTIONS = 16
"""Scrapes at once; further clients are turned away rather than given a thread."""
READ_TIMEOUT = 10.0
"""Seconds that a client may take to send its request."""
METHODS = ("GET", "HEAD")


class AgentServer:
    """Serves ``pages`` by path on its own threads. Port 0 takes a free one. Raises ConfigError if it cannot listen."""

    def __init__(self, host: str, port: int, pages: Mapping[str, App]) -> None:
        family, address = _resolve(host, port)
        self._server = _Server(family, address)
        self._server.set_app(_router(pages))
        self._thread = Thread(target=self._server.serve_forever, name="energyopt-http", daemon=True)

    @property
    def url(self) -> str:
        """The address that it listens on."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer no more; idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = READ_TIMEOUT

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is not news."""

    def log_error(self, format: str, *args: object) -> None:
        """Nor is a client that sends nonsense."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        self._places = BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__(address[:2], _Handler)
        except OSError as error:
            raise ConfigError(_refusal(error, address)) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up or is too slow; the next scrape is a new connection."""

    def server_bind(self) -> None:
        """Without the base class's look-up of this machine's name, which may ask a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()


def _router(pages: Mapping[str, App]) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in METHODS:
            return _plain(start_response, "405 Method Not Allowed", "Only GET is answered here.\n")
        page = pages.get(environ.get("PATH_INFO", ""))
        if page is None:
            return _plain(start_response, "404 Not Found", f"Pages: {' '.join(pages)}\n")
        return page(environ, start_response)

    return app


def text_page(render: Callable[[], str]) -> App:
    """A page of plain text, made anew at each request."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return _plain(start_response, "200 OK", render())

    return app


def _plain(start_response: Any, status: str, text: str) -> list[bytes]:
    body = text.encode()
    headers = [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"host = {host!r} cannot be resolved: {error}.") from error
    return family, address


def _refusal(error: OSError, address: tuple[Any, ...]) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {address[1]} on {address[0]!r} is in use: stop the other program, or choose another port (0: any)."
        )
    return f"Cannot listen on {address[0]!r}, port {address[1]}: {error.strerror}."

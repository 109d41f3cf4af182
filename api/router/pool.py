"""Connections to one backend: kept while they are fresh, made anew otherwise."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

from .connection import Connection
from .errors import BackendError, StaleConnection
from .headers import Header

FRESH = 4.0
"""Seconds a connection is kept idle: less than the five after which common servers close theirs."""
MAX_IDLE = 512


@dataclass(frozen=True, slots=True)
class Target:
    """Where a backend is. ``base`` stands before every path; ``host`` is its Host header."""

    name: str
    address: str
    port: int
    host: bytes
    base: bytes = b""
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, name: str, url: str, *, ca_file: str | None = None, verify: bool = True) -> Target:
        """Raises ConfigError for a file of authorities that cannot be used."""
        parts, tls = urlsplit(url), None
        if parts.scheme == "https":
            try:
                tls = ssl.create_default_context(cafile=ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"ca_file = {ca_file!r} of {name} cannot be used: {error}.") from error
            if not verify:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        port = parts.port or (443 if tls else 80)
        return cls(name, parts.hostname or "", port, parts.netloc.encode(), parts.path.rstrip("/").encode(), tls)


class Pool:
    """Sends requests to one backend; belongs to one event loop."""

    def __init__(self, target: Target, *, connect_seconds: Seconds, silence_seconds: Seconds) -> None:
        self.target = target
        self._connect_seconds, self._silence = connect_seconds, silence_seconds
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    async def send(self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes) -> Connection:
        """Send a request; returns when the answer's head is here. Give the connection back with ``release``.

        Raises BackendError: nothing was answered. A kept connection that had been closed is replaced silently.
        """
        head = self._head(method, path, headers, body)
        while True:
            kept = self._kept()
            connection = kept or await self._connect()
            self._busy.add(connection)
            try:
                await connection.exchange(head, body, head_only=method == b"HEAD")
            except StaleConnection as error:
                self._busy.discard(connection)
                if kept is None:
                    raise BackendError(f"{self.target.name} closed a new connection at once.") from error
            except BaseException:
                self._busy.discard(connection)
                connection.abort()
                raise
            else:
                return connection

    def release(self, connection: Connection) -> None:
        """The answer was read, or is not wanted any more: then the backend is told so."""
        self._busy.discard(connection)
        if not connection.complete:
            connection.abort()
        elif connection.reusable and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def sweep(self, now: float) -> None:
        """Close what was idle too long, and end what has been silent too long."""
        for connection in [one for one in self._idle if now - one.heard > FRESH]:
            self._idle.remove(connection)
            connection.close()
        for connection in [one for one in self._busy if one.owed and now - one.heard > self._silence]:
            connection.fail(f"{self.target.name} said nothing for {self._silence:g} s.")

    def close(self) -> None:
        """End every connection; whoever waits gets BackendError."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        for connection in tuple(self._busy):
            connection.fail("The router ends.")

    def _head(self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes) -> bytes:
        lines = [b"%b %b%b HTTP/1.1\r\nhost: %b\r\n" % (method, self.target.base, path, self.target.host)]
        lines += [b"%b: %b\r\n" % line for line in headers]
        if body or method not in (b"GET", b"HEAD"):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        return b"".join(lines)

    def _kept(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now - connection.heard <= FRESH:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        target, loop = self.target, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._lost), target.address, target.port, ssl=target.tls
                )
        except TimeoutError as error:
            raise BackendError(f"{target.name} takes no connection within {self._connect_seconds:g} s.") from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise BackendError(f"{target.name} cannot be reached: {error}.") from error
        return connection

    def _lost(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

"""Server-sent events out of bytes that come in any pieces."""

from __future__ import annotations

from energyopt.core.errors import EngineError

MAX_EVENT_BYTES = 8 * 2**20


class SseParser:
    """Feed it bytes; it returns the data of every event that is complete.

    Lines may end in LF or CRLF. Comments and fields other than ``data`` are ignored; several data lines of one event
    are joined by a newline, as the standard says. Raises EngineError for an event without end.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; returns the events that they complete."""
        events: list[bytes] = []
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise EngineError(f"The server sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return events

    @property
    def pending(self) -> bool:
        """Whether something was begun and not ended."""
        return bool(self._rest.strip() or self._data)

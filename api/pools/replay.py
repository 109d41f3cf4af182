"""A stream of events that goes on where it broke off, when the same request is asked again.

The same request gives the same tokens, so the same events but for the call's id and time. Those that the client has
are dropped, and compared on the way: a text that differs ends the stream rather than be patched together.
"""

from __future__ import annotations

from api.errors import ended_by_client

END = b"\n\n"
DONE = b"data: [DONE]"
_ERROR, _DATA = b"event: error", b"\ndata: "
_CHOICES = b'"choices"'


class StreamBrokeError(Exception):
    """The stream of an engine ended before its time; it can be asked for again."""


class StreamDiffersError(Exception):
    """Asked again, the engine said something else than what the client already has."""


class Replay:
    """The events of one request. ``feed`` takes bytes of the current try and gives what the client shall get."""

    def __init__(self) -> None:
        self.done = False
        self._seen: list[int] = []
        self._head = b""
        self._position = 0
        self._rest = b""
        self._first = True

    def again(self) -> None:
        """A new try begins."""
        self._position, self._rest, self._first = 0, b"", False

    def feed(self, data: bytes) -> bytes:
        """Raises StreamBrokeError for an error of the engine's side, StreamDiffersError."""
        *events, self._rest = (self._rest + data).split(END)
        return b"".join(self._passed(event) for event in events)

    def end(self) -> None:
        """The current try has ended. Raises StreamBrokeError if it was not at its end."""
        if not self.done:
            raise StreamBrokeError

    def _passed(self, event: bytes) -> bytes:
        if event.startswith(_ERROR):
            if b'"invalid_request_error"' not in event and not ended_by_client(event.partition(_DATA)[2]):
                raise StreamBrokeError
            self.done = True
            return event + END
        if event == DONE:
            self.done = True
            return event + END
        head, mark, tail = event.partition(_CHOICES)
        position, name = self._position, hash(tail)
        self._position += 1
        if position < len(self._seen):
            if self._seen[position] != name:
                raise StreamDiffersError
            return b""
        self._seen.append(name)
        self._head = self._head or head  # the first call's id and time are those of the whole stream
        return (event if self._first else self._head + mark + tail) + END

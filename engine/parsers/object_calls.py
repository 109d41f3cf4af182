"""What parsers share whose calls are JSON objects with the name inside."""

from __future__ import annotations

from .call_object import CallObject
from .events import Event
from .machine import Machine


class ObjectCalls(Machine):
    """Passes ``CallObject``s on as calls. One that never names a function is text, and said as it was written."""

    def __init__(self) -> None:
        super().__init__()
        self._object: CallObject | None = None
        self._written = ""
        self._sent = 0
        self._rest: str | None = None

    def close(self) -> list[Event]:
        events = super().close()
        self._end_object()
        return [*events, *self._taken()]

    def _begin_object(self, written: str = "") -> None:
        """``written`` is what led to the object, to be said if it is no call."""
        self._object, self._written, self._sent = CallObject(), written, 0

    def _read_object(self, call: CallObject) -> bool:
        """Take what belongs to the object from what is held; whether it is over."""
        count = call.feed(self._held)
        taken, self._held = self._held[:count], self._held[count:]
        if call.name is None:
            self._written += taken
        elif self._gate is None:
            self._begin_call(call.name)
        if call.name is not None:
            self._argue(call.arguments[self._sent :])
            self._sent = len(call.arguments)
        return call.done or call.broken

    def _broke(self, call: CallObject) -> None:
        """An object cannot go on: all that follows is text, or the rest of a call, which nobody can read."""
        self._rest = "text" if call.name is None else "lost"

    def _take_rest(self) -> None:
        if self._rest == "text":
            self._say(self._held)
        self._held = ""

    def _end_object(self) -> None:
        if self._object is not None and self._object.name is None:
            self._say(self._written)
        self._object = None
        self._end_call()

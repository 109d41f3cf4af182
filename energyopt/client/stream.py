"""Server-Sent Events from lines. No I/O."""

from __future__ import annotations

import json

from .models import Happening

MAX_LINE = 2**20


class EventReader:
    """Feed it lines; it gives an event at each blank line that ends one. ``last`` is the last id seen."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self._event, self._data, self._id = "", list[str](), ""

    def feed(self, line: str) -> Happening | None:
        """Raises ValueError for a line that is no event of the service."""
        if len(line) > MAX_LINE:
            raise ValueError("a line of the stream is longer than 1 MiB")
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "event":
                self._event = value
            elif name == "data":
                self._data.append(value)
            return None
        event, data, text = self._event, self._data, self._id
        self._event, self._data, self._id = "", [], ""
        if not data:
            return None
        number = int(text) if text else None
        self.last = self.last if number is None else number
        return Happening(id=number, event=event, data=json.loads("\n".join(data)))

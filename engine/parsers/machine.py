"""Reading a text in which markers separate parts, as it comes: the frame of every parser here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from .events import Arguments, CallBegun, Event, Said, Thought, merged
from .json_gate import JsonGate


class Machine(ABC):
    """Satisfies ``OutputParser``. A subclass says in ``_step`` what to do with the text that is held."""

    def __init__(self) -> None:
        self._held = ""
        self._events: list[Event] = []
        self._calls = 0
        self._gate: JsonGate | None = None
        self._drop_space = False

    def feed(self, text: str) -> list[Event]:
        self._held += text
        while self._held and self._step(final=False):
            pass
        return self._taken()

    def close(self) -> list[Event]:
        while self._held and self._step(final=True):
            pass
        self._end_call()
        return self._taken()

    @abstractmethod
    def _step(self, *, final: bool) -> bool:
        """Take some of ``_held``; whether there is more to do with what is left. ``final``: nothing will follow."""
        ...

    def _until(self, markers: Iterable[str], *, final: bool) -> tuple[str, str | None]:
        """Take the text up to the first marker, and the marker itself; None if there is none yet.

        Then the end that may be the beginning of a marker stays held. No marker may stand inside another one.
        """
        wanted = tuple(markers)
        found = [(self._held.find(marker), marker) for marker in wanted]
        at, marker = min(((at, marker) for at, marker in found if at >= 0), default=(-1, None))
        if marker is not None:
            text, self._held = self._held[:at], self._held[at + len(marker) :]
            return text, marker
        keep = 0 if final else max((_overlap(self._held, one) for one in wanted), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text, None

    def _say(self, text: str) -> None:
        """Text of the answer; white space after a call is none."""
        if self._drop_space:
            text = text.lstrip()
        if text:
            self._drop_space = False
            self._events.append(Said(text))

    def _think(self, text: str) -> None:
        self._events.append(Thought(text))

    def _begin_call(self, name: str, id: str | None = None) -> None:
        self._end_call()
        self._events.append(CallBegun(self._calls, name, id))
        self._gate = JsonGate(only_object=True)
        self._drop_space = True
        self._calls += 1

    def _argue(self, text: str) -> None:
        """More of the arguments of the call that was begun; what cannot be JSON is dropped."""
        gate = self._gate
        if gate is not None and not (gate.done or gate.broken):
            self._events.append(Arguments(self._calls - 1, gate.feed(text)[0]))

    def _end_call(self) -> None:
        if self._gate is not None:
            self._events.append(Arguments(self._calls - 1, self._gate.closing()))
            self._gate = None

    def _taken(self) -> list[Event]:
        events, self._events = merged(self._events), []
        return events


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of ``text`` that ``marker`` begins with."""
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)

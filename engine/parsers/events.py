"""What a parser finds in a model's text, in order, and the parser's port."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool call begins: the ``index``-th of this answer. ``id`` is the model's own name for it, if it gives one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments. All of one call joined are a JSON object, whatever the model wrote."""

    index: int
    text: str


Event = Said | Thought | CallBegun | Arguments


class OutputParser(Protocol):
    """Reads one answer. What it finds does not depend on how the text is cut into pieces."""

    def feed(self, text: str) -> list[Event]:
        """What ``text`` adds; text that may be the beginning of a marker is held back."""
        ...

    def close(self) -> list[Event]:
        """The end of the text: what was held back, and what completes a call that broke off."""
        ...


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbours of one kind joined and empty ones dropped."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, CallBegun):
            found.append(event)
            continue
        last = found[-1] if found else None
        if isinstance(last, type(event)) and _where(last) == _where(event):
            found[-1] = replace(last, text=last.text + event.text)
        elif event.text:
            found.append(event)
    return found


def _where(event: Event) -> int | None:
    return event.index if isinstance(event, Arguments) else None

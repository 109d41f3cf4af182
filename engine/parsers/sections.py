"""Formats in which special tokens mark the parts of a call: its header, its arguments, its end."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from .machine import Machine


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens, by name: a section holds calls, a call has a header and arguments."""

    section: str
    call: str
    arguments: str
    end_call: str
    end_section: str


class SectionCalls(Machine):
    """Reads calls by their marks; text outside of sections is said, inside of them and between calls it is dropped."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks
        self._part = "text"
        self._header = ""

    def _step(self, *, final: bool) -> bool:
        marks = self._marks
        if self._part == "text":
            text, marker = self._until([marks.section], final=final)
            self._say(text)
        elif self._part == "section":
            _, marker = self._until([marks.call, marks.end_section], final=final)
        elif self._part == "header":
            text, marker = self._until([marks.arguments, marks.end_call, marks.end_section], final=final)
            self._header += text
        else:
            text, marker = self._until([marks.end_call, marks.end_section], final=final)
            self._read_arguments(text)
        if marker is not None:
            self._reach(marker)
        return marker is not None

    def _reach(self, marker: str) -> None:
        marks = self._marks
        if marker == marks.arguments:
            self._part = "arguments"
            self._begin_from(self._header.strip())
            return
        self._end_call()
        self._header = ""
        self._part = {marks.call: "header", marks.end_section: "text"}.get(marker, "section")

    @abstractmethod
    def _begin_from(self, header: str) -> None:
        """A call's header is complete."""
        ...

    def _read_arguments(self, text: str) -> None:
        """More text after the header."""
        self._argue(text)

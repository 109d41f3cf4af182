"""A call written as one JSON object, ``{"name": ..., "arguments": {...}}``, read as it comes."""

from __future__ import annotations

import json

from .json_gate import JsonGate

_SPACE = " \t\n\r"
_NAMES = ("name",)
_ARGUMENTS = ("arguments", "parameters")


class CallObject:
    """Reads one such object; keys may stand in any order, others are skipped.

    ``name`` is known once it was read, ``arguments`` grows with the text of the arguments so far (also an object that
    was written as a string is taken). ``done``: the object is complete. ``broken``: it cannot be one.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.arguments = ""
        self.done = self.broken = False
        self._key: str | None = None
        self._value: JsonGate | None = None
        self._read = ""
        self._expects = "{"

    def feed(self, text: str) -> int:
        """How many signs were read: all, unless the object ended or broke."""
        position = 0
        while position < len(text) and not (self.done or self.broken):
            if self._value is not None:
                position += self._feed_value(self._value, text[position:])
            else:
                self._feed_sign(text[position])
                position += not self.broken
        return position

    def _feed_sign(self, sign: str) -> None:
        if sign in _SPACE:
            return
        if self._expects == "value":
            self._value, self._read = JsonGate(), ""
            self._feed_value(self._value, sign)
        elif sign == '"' and self._expects in ("key", "key}"):
            self._key, self._value, self._read = None, JsonGate(), ""
            self._feed_value(self._value, sign)
        elif (sign, self._expects) in (("}", "key}"), ("}", ",")):
            self.done = True
        elif sign == self._expects and sign in "{:,":
            self._expects = {"{": "key}", ":": "value", ",": "key"}[sign]
        else:
            self.broken = True

    def _feed_value(self, gate: JsonGate, text: str) -> int:
        passed, count = gate.feed(text)
        self._read += passed
        if self._expects == "value" and self._key in _ARGUMENTS and not self._read.startswith('"'):
            self.arguments += passed
        if gate.broken:
            self.broken = True
        elif gate.done:
            self._value = None
            self._take(self._read)
        return count

    def _take(self, written: str) -> None:
        """A key or a value is complete."""
        if self._expects != "value":
            self._key, self._expects = json.loads(written), ":"
            return
        self._expects = ","
        if self._key in _NAMES and written.startswith('"'):
            self.name = json.loads(written)
        elif self._key in _ARGUMENTS and written.startswith('"'):
            self.arguments = json.loads(written)

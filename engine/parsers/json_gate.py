"""Lets a JSON value through as it is written, and never anything that could not become one.

What has passed is at every moment the beginning of a JSON value, and ``closing`` is what completes it: so a call whose
arguments break off, or go wrong, is still valid JSON for whoever reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

_SPACE = " \t\n\r"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_MAX_DEPTH = 200

_NUMBER = {
    "-": {"0": "0", "1": "1"},
    "0": {".": ".", "e": "e"},
    "1": {"0": "1", "1": "1", ".": ".", "e": "e"},
    ".": {"0": "f", "1": "f"},
    "f": {"0": "f", "1": "f", "e": "e"},
    "e": {"0": "x", "1": "x", "+": "s"},
    "s": {"0": "x", "1": "x"},
    "x": {"0": "x", "1": "x"},
}
"""States of a number by kind of sign: "0" and "1" are a zero and another digit, "e" and "+" also stand for E and -."""

_WHOLE = frozenset("01fx")
"""States in which a number may end."""


class JsonGate:
    """Reads one value sign by sign. ``done``: it is complete. ``broken``: a sign came that cannot follow.

    With ``only_object`` anything but an object is broken from its first sign. White space before the value is dropped;
    raw control characters in strings, which JSON forbids and models write, are escaped.
    """

    def __init__(self, *, only_object: bool = False) -> None:
        self.done = self.broken = False
        self._only_object = only_object
        self._stack: list[str] = []
        self._state: Callable[[str], str | None] = self._value
        self._begun = False
        self._in_key = False
        self._escape = ""
        self._rest = ""
        self._number = ""

    def feed(self, text: str) -> tuple[str, int]:
        """What passes of ``text``, and how many signs of it were read: all, unless the value ended or broke."""
        passed: list[str] = []
        for read, sign in enumerate(text):
            found = self._state(sign)
            while found == "":  # the sign ended something and is to be read again by what follows
                if self.done:
                    return "".join(passed), read
                found = self._state(sign)
            if found is None:
                self.broken = True
                return "".join(passed), read
            if self._begun:
                passed.append(found)
            if self.done:
                return "".join(passed), read + 1
        return "".join(passed), len(text)

    def closing(self) -> str:
        """What makes a JSON value of all that passed; an empty object if nothing did."""
        if self.done:
            return ""
        if not self._begun:
            return "{}"
        end = self._unfinished()
        return end + "".join("}" if kind == "{" else "]" for kind in reversed(self._stack))

    def _unfinished(self) -> str:
        state = self._state
        if state == self._string:
            padding = "\\" if self._escape == "\\" else "0" * (6 - len(self._escape)) if self._escape else ""
            return padding + '"' + (":null" if self._in_key else "")
        if state == self._literal:
            return self._rest
        if state == self._digits:
            return "" if self._number in _WHOLE else "0"
        waiting = {self._colon: ":null", self._key: '"":null', self._value: "null"}
        return next((text for which, text in waiting.items() if state == which), "")

    def _value(self, sign: str) -> str | None:
        if sign in _SPACE:
            return sign
        if self._only_object and not self._begun and sign != "{":
            return None
        self._begun = True
        if sign in "{[":
            if len(self._stack) == _MAX_DEPTH:
                return None
            self._stack.append(sign)
            self._state = self._first_key if sign == "{" else self._first_item
        elif sign == '"':
            self._state, self._in_key = self._string, False
        elif sign in _LITERALS:
            self._state, self._rest = self._literal, _LITERALS[sign][1:]
        elif sign == "-" or ("0" <= sign <= "9"):
            self._state, self._number = self._digits, "-" if sign == "-" else "0" if sign == "0" else "1"
        else:
            self._begun = bool(self._stack)
            return None
        return sign

    def _first_item(self, sign: str) -> str | None:
        return self._close(sign) if sign == "]" else self._value(sign)

    def _first_key(self, sign: str) -> str | None:
        return self._close(sign) if sign == "}" else self._key(sign)

    def _key(self, sign: str) -> str | None:
        if sign == '"':
            self._state, self._in_key = self._string, True
            return sign
        return sign if sign in _SPACE else None

    def _colon(self, sign: str) -> str | None:
        if sign == ":":
            self._state = self._value
            return sign
        return sign if sign in _SPACE else None

    def _after(self, sign: str) -> str | None:
        """After an item: a comma, the end of what it stands in, or space."""
        if sign == ",":
            self._state = self._key if self._stack[-1] == "{" else self._value
            return sign
        if sign == ("}" if self._stack[-1] == "{" else "]"):
            return self._close(sign)
        return sign if sign in _SPACE else None

    def _close(self, sign: str) -> str:
        self._stack.pop()
        self._end_of_value()
        return sign

    def _end_of_value(self) -> None:
        self.done = not self._stack
        self._state = self._after

    def _string(self, sign: str) -> str | None:
        if self._escape:
            return self._escaped(sign)
        if sign == "\\":
            self._escape = sign
        elif sign == '"':
            if self._in_key:
                self._state = self._colon
            else:
                self._end_of_value()
        return sign if sign >= " " else json.dumps(sign)[1:-1]

    def _escaped(self, sign: str) -> str | None:
        if self._escape == "\\":
            if sign not in '"\\/bfnrtu':
                return None
            self._escape = "\\u" if sign == "u" else ""
        else:
            if sign not in "0123456789abcdefABCDEF":
                return None
            self._escape = "" if len(self._escape) == 5 else self._escape + sign
        return sign

    def _literal(self, sign: str) -> str | None:
        if not self._rest.startswith(sign):
            return None
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_of_value()
        return sign

    def _digits(self, sign: str) -> str | None:
        kind = "0" if sign == "0" else "1" if "1" <= sign <= "9" else {"E": "e", "-": "+"}.get(sign, sign)
        following = _NUMBER[self._number].get(kind)
        if following is not None:
            self._number = following
            return sign
        if self._number not in _WHOLE:
            return None
        self._end_of_value()
        return ""

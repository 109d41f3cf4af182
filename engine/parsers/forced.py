"""Answers that a guide has forced to be calls: arguments of a known function, or an array of calls."""

from __future__ import annotations

from .machine import Machine
from .object_calls import ObjectCalls


class NamedCall(Machine):
    """Satisfies ``OutputParser``: the whole answer is the arguments of one function."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _step(self, *, final: bool) -> bool:
        if not self._calls:
            self._begin_call(self._name)
        self._argue(self._held)
        self._held = ""
        return False


class RequiredCalls(ObjectCalls):
    """Satisfies ``OutputParser``: the whole answer is an array of objects with a name and arguments."""

    def _step(self, *, final: bool) -> bool:
        if self._rest is not None:
            self._take_rest()
            return False
        if self._object is None:
            self._held = self._held.lstrip(" \t\r\n[,]")
            if not self._held:
                return False
            self._begin_object()
        call = self._object
        if call is None or not self._read_object(call):
            return False
        if call.broken:
            self._broke(call)
        self._end_object()
        return bool(self._held)

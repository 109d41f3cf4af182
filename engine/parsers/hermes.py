"""Hermes 2 Pro, Qwen 2.5 and Qwen 3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, between text."""

from __future__ import annotations

from .object_calls import ObjectCalls

_BEGIN, _END = "<tool_call>", "</tool_call>"


class HermesCalls(ObjectCalls):
    """Satisfies ``OutputParser``."""

    def _step(self, *, final: bool) -> bool:
        call = self._object
        if call is None:
            return self._text(final=final)
        if not (call.done or call.broken) and not self._read_object(call):
            return False
        text, marker = self._until([_END], final=final)
        if call.name is None:
            self._written += text + (marker or "")
        if marker is not None:
            self._end_object()
        return marker is not None

    def _text(self, *, final: bool) -> bool:
        text, marker = self._until([_BEGIN], final=final)
        self._say(text)
        if marker is not None:
            self._begin_object(marker)
        return marker is not None

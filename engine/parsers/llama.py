"""Llama 3.1 and later: the whole answer is ``{"name": ..., "parameters": {...}}``, or several with ``;`` between."""

from __future__ import annotations

from .object_calls import ObjectCalls

_TAG = "<|python_tag|>"


class LlamaCalls(ObjectCalls):
    """Satisfies ``OutputParser``. An answer that begins otherwise is text from end to end."""

    def _step(self, *, final: bool) -> bool:
        if self._rest is not None:
            self._take_rest()
            return False
        call = self._object
        if call is None:
            return self._beginning(final=final)
        if not self._read_object(call):
            return False
        if call.broken:
            self._broke(call)
        self._end_object()
        return bool(self._held)

    def _beginning(self, *, final: bool) -> bool:
        """Before a call: space, the tag, separators after an earlier one."""
        skipped = self._held.lstrip(" \t\r\n;," if self._calls else " \t\r\n")
        if not skipped or (_TAG.startswith(skipped) and not final):
            return False
        if skipped.startswith(_TAG):
            self._held = skipped.removeprefix(_TAG)
            return True
        if skipped[0] == "{":
            self._begin_object(self._held[: len(self._held) - len(skipped)])
            self._held = skipped
        else:
            self._rest = "text"
        return True

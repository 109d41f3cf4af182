"""gpt-oss: messages on channels. ``analysis`` is reasoning, ``final`` the answer, and a recipient makes a call."""

from __future__ import annotations

import re

from .machine import Machine

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyMessages(Machine):
    """Satisfies ``OutputParser``. The prompt ends with the role, so an answer begins with a channel.

    An answer that begins otherwise (because it was forced into a form) is text from end to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._header = ""
        self._part = "start"

    def _step(self, *, final: bool) -> bool:
        if self._part == "start":
            return self._start(final=final)
        if self._part == "header":
            text, marker = self._until([_MESSAGE], final=final)
            self._header += text
            if marker is not None:
                self._part = self._kind(self._header)
                self._header = ""
            return marker is not None
        ends = () if self._part == "plain" else _ENDS
        text, marker = self._until(ends, final=final)
        self._tell(text)
        if marker is None:
            return False
        self._end_call()
        self._part, self._header = "header", marker if marker == "<|channel|>" else ""
        return True

    def _start(self, *, final: bool) -> bool:
        known = "<|"
        if not final and len(self._held) < len(known) and known.startswith(self._held):
            return False
        self._part = "header" if self._held.startswith(known) else "plain"
        return True

    def _kind(self, header: str) -> str:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient is not None:
            self._begin_call(recipient.group(1))
            return "call"
        return "thought" if channel is not None and channel.group(1) == "analysis" else "answer"

    def _tell(self, text: str) -> None:
        if self._part == "call":
            self._argue(text)
        elif self._part == "thought":
            self._think(text)
        else:
            self._say(text)

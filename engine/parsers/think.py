"""Reasoning between ``<think>`` and ``</think>`` before the answer: DeepSeek R1 and V3.1, Qwen 3, Kimi K2 Thinking."""

from __future__ import annotations

from .events import Event, OutputParser, merged
from .machine import Machine

BEGIN, END = "<think>", "</think>"


class ThinkThenAnswer(Machine):
    """Satisfies ``OutputParser``: what follows the reasoning goes to ``answer``.

    ``opened``: the prompt has begun the reasoning. Space before the reasoning and before the answer is dropped.
    """

    def __init__(self, answer: OutputParser, *, opened: bool) -> None:
        super().__init__()
        self._answer = answer
        self._part = "thought" if opened else "start"
        self._space = opened

    def close(self) -> list[Event]:
        return merged([*super().close(), *self._answer.close()])

    def _step(self, *, final: bool) -> bool:
        if self._part == "answer":
            self._events += self._answer.feed(self._held)
            self._held = ""
            return False
        if self._space:
            self._held = self._held.lstrip()
            self._space = not self._held
        if self._part == "after":
            self._part = "answer" if self._held else "after"
            return bool(self._held)
        return self._start(final=final) if self._part == "start" else self._thought(final=final)

    def _start(self, *, final: bool) -> bool:
        held = self._held.lstrip()
        if not final and BEGIN.startswith(held):
            return False
        if held.startswith(BEGIN):
            self._part, self._held, self._space = "thought", held.removeprefix(BEGIN), True
        else:
            self._part = "answer"
        return True

    def _thought(self, *, final: bool) -> bool:
        text, marker = self._until([END], final=final)
        self._think(text)
        if marker is None:
            return False
        self._part, self._space = "after", True
        return True


class Plain(Machine):
    """Satisfies ``OutputParser``: all of it is the answer."""

    def _step(self, *, final: bool) -> bool:
        self._say(self._held)
        self._held = ""
        return False

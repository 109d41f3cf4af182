"""Gemma 3: calls are Python, in a fence named ``tool_code``; only literal arguments are read, nothing is run."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from .machine import Machine

_BEGIN, _END = "```tool_code", "```"


class GemmaCalls(Machine):
    """Satisfies ``OutputParser``. A fence is read when it is complete; one that holds no calls is text."""

    def __init__(self) -> None:
        super().__init__()
        self._code: str | None = None

    def _step(self, *, final: bool) -> bool:
        text, marker = self._until([_BEGIN if self._code is None else _END], final=final)
        if self._code is None:
            self._say(text)
            self._code = "" if marker else None
            return marker is not None
        self._code += text
        if marker or final:
            code, self._code = self._code, None
            self._read(code, marker or "")
        return marker is not None

    def _end_call(self) -> None:
        if self._code is not None:  # the text ended right after the fence began
            code, self._code = self._code, None
            self._read(code, "")
        super()._end_call()

    def _read(self, code: str, end: str) -> None:
        try:
            calls = [_call(node) for node in _calls(code)]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            calls = []  # what ast raises for text that is no code, and json for a literal that it cannot say
        if not calls:
            self._say(_BEGIN + code + end)
        for name, arguments in calls:
            self._begin_call(name)
            self._argue(arguments)


def _calls(code: str) -> list[ast.Call]:
    """The calls that a program consists of, in order."""
    expressions = [node.value for node in ast.parse(code.strip()).body if isinstance(node, ast.Expr)]
    return [call for expression in expressions for call in _inside(expression)]


def _inside(node: ast.expr) -> Iterator[ast.Call]:
    """The call that an expression is, or those inside of ``print(...)`` or of a list."""
    if isinstance(node, ast.List):
        for element in node.elts:
            yield from _inside(element)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        for argument in node.args:
            yield from _inside(argument)
    elif isinstance(node, ast.Call):
        yield node


def _call(node: ast.Call) -> tuple[str, str]:
    """The name, and the arguments as JSON.

    Raises ValueError for an argument that is no literal, has no name or is infinite, TypeError for a key that JSON
    lacks.
    """
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("an argument has no name")
    arguments = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    return ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, default=str, allow_nan=False)

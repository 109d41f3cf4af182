"""Messages to prompt text by the model's own template, in a sandbox: a template is code from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from energyopt.core.errors import ModelFormatError, RequestError

_WRITES_ARGUMENTS = re.compile(r"arguments['\"\]]*\s*\|\s*tojson")


class ChatTemplate:
    """A compiled template; ``source`` is its text. ``names`` are the marker strings it may use (``bos_token`` ...).

    Thread-safe.
    """

    def __init__(self, source: str, names: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._names = dict(names or {})
        self.source = source
        self._writes_arguments = _WRITES_ARGUMENTS.search(source) is not None and "is string" not in source
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ModelFormatError(f"The model's chat template does not compile: {error}.") from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        """Prompt text. ``kwargs`` become template variables (``enable_thinking`` ...).

        Raises RequestError with the template's own words when it refuses the messages.
        """
        values = {**self._names, **kwargs}
        if self._writes_arguments:
            messages = [_with_objects(message) for message in messages]
        try:
            return self._template.render(
                **values, messages=messages, tools=tools, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}.", param="messages"
            ) from error


def _with_objects(message: Mapping[str, object]) -> Mapping[str, object]:
    """A message whose calls have their arguments as objects, for a template that writes them as JSON itself.

    OpenAI's clients send them as JSON text, which would be written as a string in a string.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not (isinstance(call, dict) and isinstance(function, dict) and isinstance(arguments, str)):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(arguments)}}
    except (ValueError, RecursionError):  # no JSON: the template shows what it was given
        return call


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(value: object, indent: int | None = None) -> str:
    """Unlike Jinja's own filter, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)

"""Messages to prompt text by the model's own template, in a sandbox: a template is code from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from energyopt.core.errors import ModelFormatError, RequestError


class ChatTemplate:
    """A compiled template. ``names`` are the marker strings it may use (``bos_token`` ...). Thread-safe."""

    def __init__(self, source: str, names: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._names = dict(names or {})
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
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
        try:
            return self._template.render(
                **values, messages=messages, tools=tools, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}.", param="messages"
            ) from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(value: object, indent: int | None = None) -> str:
    """Unlike Jinja's own filter, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)

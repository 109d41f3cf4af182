"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from .schemas import GenerationBody

Prompt = str | list[int]


def _prompts(value: object) -> list[Prompt]:
    """The four forms of OpenAI's ``prompt`` as a list of prompts."""
    if isinstance(value, str) or _ids(value):
        return [value]  # type: ignore[list-item]  # _ids narrows, which mypy cannot see through ``or``
    if isinstance(value, list) and value and (all(isinstance(entry, str) for entry in value) or all(map(_ids, value))):
        return value
    raise ValueError("it must be a string, an array of strings, an array of token ids or an array of such arrays")


def _ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and set(map(type, value)) == {int}


_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class CompletionBody(GenerationBody):
    """``logprobs`` is the number of alternatives per token; ``best_of`` may only repeat ``n``.

    With ``echo`` the text begins with the prompt, and ``logprobs`` with those of its tokens, the first of which has
    none. Then ``max_tokens`` may be 0.
    """

    prompt: Annotated[list[Prompt], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None
    echo: bool | None = None

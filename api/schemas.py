"""What both generation routes read from a body, and how bytes become a checked body.

Types are strict: ``"16"`` is not a number and 1 is not a boolean. Every optional field takes null, because clients
send it. Ranges of sampling values are checked by ``SamplingParams``, in one place.
"""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from energyopt.core.errors import RequestError

from .fields import refuse_unknown

_SHOWN = 60
_ID = re.compile("[0-9]{1,9}")


class StreamOptions(BaseModel):
    """``continuous_usage_stats`` puts the usage so far on every chunk. Other options change no content."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(BaseModel):
    """Fields that chat and plain completions share.

    A lower ``priority`` is admitted earlier, as in vLLM. ``timeout`` is ours: seconds after which the answer ends.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=1024)
    skip_special_tokens: bool | None = None
    priority: int | None = None
    timeout: float | None = None
    session_id: str | None = Field(None, max_length=256)
    kv_transfer_params: dict[str, object] | None = None
    response_format: dict[str, object] | None = None
    structured_outputs: dict[str, object] | None = None
    guided_json: str | bool | dict[str, object] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def biases(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` as pairs. Raises RequestError for a key that is not a token id."""
        given = self.logit_bias or {}
        wrong = next((key for key in given if not _ID.fullmatch(key)), None)
        if wrong is not None:
            raise RequestError(f"logit_bias holds the key {wrong[:40]!r}: keys are token ids.", param="logit_bias")
        return tuple((int(key), bias) for key, bias in given.items())


BodyT = TypeVar("BodyT", bound=BaseModel)


def parse_body(raw: bytes, schema: type[BodyT]) -> BodyT:
    """A checked body. Raises RequestError (bad JSON, wrong type), UnknownFieldError or UnsupportedFieldError."""
    body = decoded_json(raw)
    refuse_unknown(body, schema.model_fields)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _first(error) from error


def decoded_json(raw: bytes) -> dict[str, object]:
    """A body as an object. Raises RequestError for anything else."""
    try:
        body = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.") from error
    if not isinstance(body, dict):
        raise RequestError(f"The request body must be a JSON object, not {_kind(body)}.")
    return body


def _first(error: ValidationError) -> RequestError:
    """The first complaint of pydantic as one sentence that names the field."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "body"
    if first["type"] == "missing":
        return RequestError(f"{name} is missing.", param=name)
    shown = repr(first["input"])
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    message = first["msg"].removeprefix("Value error, ")
    return RequestError(f"{name} = {shown} is not allowed: {message[:1].lower()}{message[1:]}.", param=name)


def _kind(value: object) -> str:
    return {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}.get(type(value), "a number")

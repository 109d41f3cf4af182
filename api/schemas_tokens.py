"""The bodies of ``POST /tokenize`` and ``POST /detokenize``, in vLLM's shape."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from .schemas_chat import Conversation


class TokenizeTextBody(BaseModel):
    """A text. ``add_special_tokens`` False reads the names of special tokens in it as plain text."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatBody(Conversation):
    """A conversation, as the model would be given it."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """Token ids."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str | None = None
    tokens: list[int] = Field(max_length=1 << 22)

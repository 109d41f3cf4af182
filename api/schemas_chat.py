"""The body of ``POST /v1/chat/completions``.

Messages stay mappings: roles and fields that we do not know, ``reasoning`` and ``reasoning_content`` among them, reach
the chat template untouched. Only content given in parts is changed: templates of text models expect one string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from energyopt.core.errors import RequestError

from .errors import UnsupportedFieldError
from .schemas import GenerationBody
from .services import ChatRenderer

_RESERVED = {"self", "messages", "tools", "add_generation_prompt"}
"""Names that a renderer's call takes already."""


class Conversation(BaseModel):
    """What a chat template is given."""

    model_config = ConfigDict(strict=True, frozen=True)

    messages: list[dict[str, object]] = Field(min_length=1)
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None

    def renderer(self, chat: ChatRenderer) -> Callable[[], str]:
        """What makes the prompt text, once everything that needs no template is checked.

        Raises RequestError; so does the call, when the template refuses.
        """
        messages, tools, extra = self.conversation(), self.template_tools(), self.template_kwargs()
        prompted = self.add_generation_prompt is not False
        return lambda: chat.render(messages, tools=tools, add_generation_prompt=prompted, **extra)

    def conversation(self) -> list[Mapping[str, object]]:
        """The messages, with text parts joined. Raises RequestError naming the message and part at fault."""
        return [_flattened(message, f"messages[{index}]") for index, message in enumerate(self.messages)]

    def template_tools(self) -> list[dict[str, object]] | None:
        """Tools for the template. With ``tool_choice`` "none" the model is not told of them."""
        return None if self.tool_choice == "none" or not self.tools else self.tools

    def template_kwargs(self) -> dict[str, object]:
        """Variables for the template. Raises RequestError when one would replace what the request itself says."""
        extra = dict(self.chat_template_kwargs or {})
        taken = sorted(extra.keys() & _RESERVED)
        if taken:
            message = f"chat_template_kwargs may not set {taken[0]!r}: the request itself sets it."
            raise RequestError(message, param="chat_template_kwargs")
        if self.reasoning_effort is not None:
            extra.setdefault("reasoning_effort", self.reasoning_effort)
        return extra


class ChatBody(Conversation, GenerationBody):
    """``max_completion_tokens`` wins over its old name ``max_tokens``."""

    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include_reasoning: bool | None = None

    def wanted_logprobs(self) -> int | None:
        """Alternatives per token, or None. Raises RequestError for ``top_logprobs`` without ``logprobs``."""
        if self.top_logprobs is not None and self.top_logprobs > 0 and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


def _flattened(message: Mapping[str, object], where: str) -> Mapping[str, object]:
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}.role is missing or not a string.", param=f"{where}.role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a string or an array of parts.", param=f"{where}.content")
    texts = [_text(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return {**message, "content": "\n".join(texts)}


def _text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind is not None and kind != "text":
        message = f"{where}.type = {str(kind)[:60]!r} is not supported: this server reads parts of type 'text' only."
        raise UnsupportedFieldError(message, param=where)
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise RequestError(f"{where} must be an object with type 'text' and a string in text.", param=where)
    return text

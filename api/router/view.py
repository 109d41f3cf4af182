"""The little that routing reads of a request. The body itself is forwarded as it came, whatever is or is not in it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic_core import from_json

from engine.routing.names import Prompt

from .headers import Header

SESSION_HEADERS = (b"x-session-id", b"x-session-affinity", b"x-correlation-id")
"""Where clients put a session when it is not in the body; the first one present counts."""
USUAL_OUTPUT = 256
"""Tokens expected of an answer whose length is not bounded, and the most that a bound is believed."""
_MAX_SESSION = 256


@dataclass(frozen=True, slots=True)
class View:
    """What a request asks for, as far as it says so in a form that is understood."""

    model: str | None = None
    session: str | None = None
    prompt: Prompt = field(default_factory=Prompt)
    output_tokens: int = USUAL_OUTPUT
    stream: bool = False


def view_of(body: bytes, headers: Iterable[Header]) -> View:
    """Never raises: what is not understood is left out of the view."""
    session = _session_of_headers(headers)
    try:
        document = from_json(body) if body else None
    except ValueError:
        document = None  # no JSON, or JSON that the engine may judge
    if not isinstance(document, dict):
        return View(session=session)
    model, own = document.get("model"), document.get("session_id")
    if not own and isinstance(extra := document.get("vllm_xargs"), dict):
        own = extra.get("session_id")
    return View(
        model=model if isinstance(model, str) else None,
        session=own[:_MAX_SESSION] if isinstance(own, str) and own else session,
        prompt=_prompt(document),
        output_tokens=_output(document),
        stream=document.get("stream") is True,
    )


def _session_of_headers(headers: Iterable[Header]) -> str | None:
    found = {name: value for name, value in headers if name in SESSION_HEADERS and value}
    return next((found[name][:_MAX_SESSION].decode("latin-1") for name in SESSION_HEADERS if name in found), None)


def _output(document: Mapping[str, object]) -> int:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        asked = document.get(name)
        if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
            return min(asked, USUAL_OUTPUT)
    return USUAL_OUTPUT


def _prompt(document: Mapping[str, object]) -> Prompt:
    messages = document.get("messages")
    if isinstance(messages, list):
        tools = document.get("tools")
        head = [_dumped(tools)] if tools else []
        return Prompt(_encoded("\0".join([*head, *(part for message in messages for part in _parts(message))])))
    given = document.get("prompt", document.get("input"))
    if isinstance(given, list) and given and isinstance(given[0], list | str):
        given = given[0] if "prompt" in document or isinstance(given[0], list) else given
    if isinstance(given, list) and given and (ids := _ids(given)) is not None:
        return Prompt(ids=ids)
    if isinstance(given, list):
        return Prompt(_encoded("\0".join(part for item in given for part in _parts(item))))
    instructions = document.get("instructions")
    head = [instructions] if isinstance(instructions, str) else []
    return Prompt(_encoded("\0".join([*head, given]))) if isinstance(given, str) else Prompt()


def _ids(given: list[object]) -> array[int] | None:
    """Token ids as 32-bit numbers; None if they are none."""
    try:
        return array("I", given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _parts(message: object) -> list[str]:
    """A message as text: its role and content, then whatever else it has. Equal messages give equal text."""
    if not isinstance(message, dict):
        return [message] if isinstance(message, str) else [_dumped(message)]
    role, content = message.get("role"), message.get("content")
    parts = [str(role), content if isinstance(content, str) else _dumped(content)]
    if len(message) > 2:
        parts.append(_dumped({key: value for key, value in message.items() if key not in ("role", "content")}))
    return parts


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")

"""A client's request as two: what the prefill engine is asked, and what the decode engine is.

The decode leg's body is the client's own bytes with fields put in front; the prefill leg's is made anew, since all it
shares with the client's is the prompt.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import from_json

from engine.disagg.params import FIELD

WISH: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a prefill leg is asked to hand over, as vLLM's proxies write it."""

_ONLY_OF_ANSWERS = (
    *("stream", "stream_options", "n", "best_of", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "echo"),
    *("stop", "stop_token_ids", "response_format", "structured_outputs", "guided_json", "guided_regex"),
    *("guided_choice", "guided_grammar", "max_completion_tokens"),
)
"""Fields that shape an answer, and so mean nothing to a leg whose answer is thrown away."""


@dataclass(frozen=True, slots=True)
class Legs:
    """``prefill`` is None where there is nothing to hand over: several prompts or choices, or no request at all.

    ``decode`` is the body of the whole request; ``with_offer`` makes a decode leg of it. ``stream``: events are
    asked for.
    """

    decode: bytes
    prefill: bytes | None = None
    stream: bool = False


def legs_of(body: bytes) -> Legs:
    """Never raises: what cannot be read goes to an engine as it is, which says what is wrong with it.

    A request that samples without a seed is given one: asked again after a crash, it must get the same text.
    """
    try:
        document = from_json(body)
    except ValueError:
        return Legs(body)
    if not isinstance(document, dict):
        return Legs(body)
    stream = document.get("stream") is True
    if document.get(FIELD) is not None:
        return Legs(body, stream=stream)  # whoever hands over by himself knows what he does
    if document.get("seed") is None and document.get("temperature") != 0 and "seed" not in document:
        body = put_first(body, {"seed": secrets.randbelow(1 << 62)})
    return Legs(body, _prefill(document) if _single(document) else None, stream)


def with_offer(decode: bytes, offer: object) -> bytes:
    """The decode leg: the body with what the prefill leg answered."""
    return put_first(decode, {FIELD: offer})


def put_first(body: bytes, fields: Mapping[str, object]) -> bytes:
    """An object's bytes with fields before its own, which stay as they are."""
    start, brace, rest = body.partition(b"{")
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return start + brace + json.dumps(dict(fields)).encode()[1:-1] + comma + rest


def _prefill(document: Mapping[str, object]) -> bytes:
    kept = {name: value for name, value in document.items() if name not in _ONLY_OF_ANSWERS}
    return json.dumps({**kept, "max_tokens": 1, FIELD: dict(WISH)}).encode()


def _single(document: Mapping[str, object]) -> bool:
    """Whether it is one prompt with one answer."""
    prompt = document.get("prompt")
    many = isinstance(prompt, list) and bool(prompt) and not all(type(token) is int for token in prompt)
    return document.get("n") in (None, 1) and document.get("best_of") in (None, 1) and not many

"""Log-probabilities in the two shapes that OpenAI gives them."""

from __future__ import annotations

from collections.abc import Sequence

from engine.output import Output
from engine.ports import Tokenizer
from engine.request import TokenLogprobs

_FLOOR = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON cannot say."""


def _finite(logprob: float) -> float:
    return max(logprob, _FLOOR)


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, object]:
    text = tokenizer.token_text(token)
    # A token that is a part of a character has no text of its own, and its bytes are not known here.
    encoded = None if "�" in text else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": _finite(logprob), "bytes": encoded}


def chat_logprobs(tokenizer: Tokenizer, outputs: Sequence[Output]) -> dict[str, object]:
    """The ``logprobs`` object of a chat choice or chunk over the tokens of ``outputs``."""
    content = []
    for output in outputs:
        for token, entry in zip(output.token_ids, output.logprobs, strict=True):
            top = [_entry(tokenizer, other, logprob) for other, logprob in entry.top]
            content.append({**_entry(tokenizer, token, entry.chosen), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, outputs: Sequence[Output], offset: int, prompt: Sequence[int] = ()
) -> dict[str, object]:
    """The ``logprobs`` object of a plain completion; ``offset`` is the length of the token texts before these.

    ``prompt`` comes before the tokens of ``outputs``, where it is repeated. Its first token follows nothing, so nothing
    says how likely it was: null.
    """
    tokens: list[str] = []
    chosen: list[float | None] = []
    top: list[dict[str, float] | None] = []
    offsets: list[int] = []
    entries: list[tuple[int, TokenLogprobs | None]] = []
    scores = [score for output in outputs for score in output.prompt_logprobs]
    entries += zip(prompt, (None, *scores), strict=False)  # an answer that ended before its prompt was read has fewer
    for output in outputs:
        entries += zip(output.token_ids, output.logprobs, strict=True)
    for token, entry in entries:
        text = tokenizer.token_text(token)
        tokens.append(text)
        chosen.append(None if entry is None else _finite(entry.chosen))
        top.append(None if entry is None else _alternatives(tokenizer, text, entry))
        offsets.append(offset)
        offset += len(text)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}


def _alternatives(tokenizer: Tokenizer, text: str, entry: TokenLogprobs) -> dict[str, float]:
    """The chosen token is always among them, as in OpenAI's replies."""
    named = {tokenizer.token_text(token): _finite(logprob) for token, logprob in entry.top}
    return {**named, text: _finite(entry.chosen)}

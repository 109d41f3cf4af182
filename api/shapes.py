"""The two reply shapes, chat and plain completion: whole replies, and the events of a stream.

Chunks are made of prepared text and one ``json.dumps`` per string: a stream makes one per token, and validating models
there costs several times as much (tests/bench has the figure).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from energyopt.core.records import FinishReason
from engine.output import Output
from engine.ports import Tokenizer

from .call import Call
from .logprobs import chat_logprobs, completion_logprobs

Json = Mapping[str, object]

DONE = b"data: [DONE]\n\n"


class Shape(Protocol):
    """How one call's choices are written. One instance serves one call: it remembers where each choice stands."""

    def opening(self) -> bytes:
        """Events before the first token; may be empty."""
        ...

    def chunk(self, index: int, output: Output, usage: Json | None) -> bytes:
        """The event for one output; empty when there is nothing to say. ``usage`` is the usage so far, if wanted."""
        ...

    def closing(self, usage: Json) -> bytes:
        """The event with the final usage and no choices."""
        ...

    def reply(self, outputs: Sequence[Sequence[Output]], usage: Json) -> bytes:
        """The whole reply from all outputs of every choice."""
        ...


class _Frame:
    """What both shapes share: the constant start of every chunk, and its end."""

    def __init__(self, call: Call, tokenizer: Tokenizer, chunk_object: str, reply_object: str) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._wants_logprobs = [job.params.logprobs is not None for job in call.jobs]
        self._reply_object = reply_object
        head = {"id": call.id, "object": chunk_object, "created": call.created, "model": call.model}
        self._head = f"data: {json.dumps(head)[:-1]}, "
        self._no_usage = ', "usage": null' if call.include_usage or call.continuous_usage else ""

    def closing(self, usage: Json) -> bytes:
        return f'{self._head}"choices": [], "usage": {json.dumps(usage)}}}\n\n'.encode()

    def _event(
        self, index: int, middle: str, logprobs: Json | None, output: Output | None, usage: Json | None
    ) -> bytes:
        reason = json.dumps(output.finish_reason) if output is not None else "null"
        end = self._no_usage if usage is None else f', "usage": {json.dumps(usage)}'
        probabilities = "null" if logprobs is None else json.dumps(logprobs)
        choice = f'{{"index": {index}, {middle}, "logprobs": {probabilities}, "finish_reason": {reason}}}'
        return f'{self._head}"choices": [{choice}]{end}}}\n\n'.encode()

    def _silent(self, index: int, output: Output) -> bool:
        """No text, no end, and no log-probabilities to carry: an incomplete character or stop string."""
        return not output.text and output.finish_reason is None and not self._wants_logprobs[index]

    def _whole(self, choices: Sequence[Json], usage: Json) -> bytes:
        call = self._call
        head = {"id": call.id, "object": self._reply_object, "created": call.created, "model": call.model}
        return json.dumps({**head, "choices": choices, "usage": usage}).encode()


class ChatShape(_Frame):
    """``chat.completion`` and ``chat.completion.chunk``."""

    def __init__(self, call: Call, tokenizer: Tokenizer) -> None:
        super().__init__(call, tokenizer, "chat.completion.chunk", "chat.completion")

    def opening(self) -> bytes:
        middle = '"delta": {"role": "assistant", "content": ""}'
        return b"".join(self._event(index, middle, None, None, None) for index in range(len(self._call.jobs)))

    def chunk(self, index: int, output: Output, usage: Json | None) -> bytes:
        if self._silent(index, output):
            return b""
        delta = f'"delta": {{"content": {json.dumps(output.text)}}}' if output.text else '"delta": {}'
        return self._event(index, delta, self._logprobs(index, [output]), output, usage)

    def reply(self, outputs: Sequence[Sequence[Output]], usage: Json) -> bytes:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text_of(parts), "refusal": None},
                "logprobs": self._logprobs(index, parts),
                "finish_reason": reason_of(parts),
            }
            for index, parts in enumerate(outputs)
        ]
        return self._whole(choices, usage)

    def _logprobs(self, index: int, parts: Sequence[Output]) -> Json | None:
        return chat_logprobs(self._tokenizer, parts) if self._wants_logprobs[index] else None


class CompletionShape(_Frame):
    """``text_completion``, for whole replies and chunks alike."""

    def __init__(self, call: Call, tokenizer: Tokenizer) -> None:
        super().__init__(call, tokenizer, "text_completion", "text_completion")
        self._offsets = [0] * len(call.jobs)

    def opening(self) -> bytes:
        return b""

    def chunk(self, index: int, output: Output, usage: Json | None) -> bytes:
        if self._silent(index, output):
            return b""
        return self._event(index, f'"text": {json.dumps(output.text)}', self._logprobs(index, [output]), output, usage)

    def reply(self, outputs: Sequence[Sequence[Output]], usage: Json) -> bytes:
        choices = [
            {
                "index": index,
                "text": text_of(parts),
                "logprobs": self._logprobs(index, parts),
                "finish_reason": reason_of(parts),
            }
            for index, parts in enumerate(outputs)
        ]
        return self._whole(choices, usage)

    def _logprobs(self, index: int, parts: Sequence[Output]) -> Json | None:
        if not self._wants_logprobs[index]:
            return None
        start = self._offsets[index]
        self._offsets[index] += sum(
            len(self._tokenizer.token_text(token)) for part in parts for token in part.token_ids
        )
        return completion_logprobs(self._tokenizer, parts, start)


def text_of(parts: Sequence[Output]) -> str:
    """The text of one choice."""
    return "".join(part.text for part in parts)


def reason_of(parts: Sequence[Output]) -> FinishReason | None:
    """Why one choice ended."""
    return parts[-1].finish_reason if parts else None

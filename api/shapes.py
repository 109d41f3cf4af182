"""The two reply shapes, chat and plain completion: whole replies, and the events of a stream.

A stream makes one event per token, so the common one is put together from prepared text; validating a model there
costs many times as much (tests/bench/test_api_cost.py prints the figures).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Protocol

from energyopt.core.records import FinishReason
from engine.disagg.params import FIELD
from engine.output import Output
from engine.ports import Tokenizer

from .call import Call
from .logprobs import completion_logprobs

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


class Frame(ABC):
    """What both shapes share: the frame of every event, and the fast way to write the common one.

    ``chunk`` writes an output that is only text from prepared halves; ``full_chunk`` is its slow twin, which writes
    any output. The halves are cut from an event of the slow twin, so both agree by construction.
    """

    def __init__(self, call: Call, tokenizer: Tokenizer, chunk_object: str, reply_object: str) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._wants_logprobs = [job.params.logprobs is not None for job in call.jobs]
        self._head = {"id": call.id, "object": chunk_object, "created": call.created, "model": call.model}
        self._reply_object = reply_object
        self._tells_usage = call.include_usage or call.continuous_usage
        self._halves = [self._halve(index) for index in range(len(call.jobs))]

    def chunk(self, index: int, output: Output, usage: Json | None) -> bytes:
        if output.finish_reason is not None or usage is not None or self._wants_logprobs[index]:
            return self.full_chunk(index, output, usage)
        if not output.text:  # an incomplete character or stop string
            return b""
        start, end = self._halves[index]
        return f"{start}{quoted(output.text)}{end}".encode()

    def full_chunk(self, index: int, output: Output, usage: Json | None) -> bytes:
        """The event of any output."""
        part = self._part(self._text(index, output))
        logprobs = self._logprobs(index, [output]) if self._wants_logprobs[index] else None
        return self._event([self._choice(index, part, logprobs, output.finish_reason)], usage)

    def closing(self, usage: Json) -> bytes:
        return self._event([], usage)

    def reply(self, outputs: Sequence[Sequence[Output]], usage: Json) -> bytes:
        choices = []
        for index, parts in enumerate(outputs):
            logprobs = self._logprobs(index, parts) if self._wants_logprobs[index] else None
            body = self._body(index, text_of(parts))
            choices.append(self._choice(index, body, logprobs, self._reason(index, reason_of(parts))))
        reply = {**self._head, "object": self._reply_object, "choices": choices, "usage": usage}
        offer = outputs[0][-1].offer if outputs and outputs[0] else None
        if offer is not None:
            reply[FIELD] = offer.wire()
        return json.dumps(reply).encode()

    def _event(self, choices: Sequence[Json], usage: Json | None) -> bytes:
        tail = {"usage": usage} if self._tells_usage else {}
        return f"data: {json.dumps({**self._head, 'choices': choices, **tail})}\n\n".encode()

    def _choice(self, index: int, content: Json, logprobs: Json | None, reason: str | None) -> Json:
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _reason(self, index: int, reason: FinishReason | None) -> str | None:
        """What the client is told of why a choice ended, once all of it was read."""
        return reason

    def _text(self, index: int, output: Output) -> str:
        """The new text of an output that is written in full."""
        return output.text

    def _halve(self, index: int) -> tuple[str, str]:
        # The call's id is random, so that no other string of the event can be equal to this mark.
        mark = f"{self._call.id}-text"
        start, end = self._event([self._choice(index, self._part(mark), None, None)], None).decode().split(quoted(mark))
        return start, end

    @abstractmethod
    def _part(self, text: str) -> Json:
        """New text in a chunk."""
        ...

    @abstractmethod
    def _body(self, index: int, text: str) -> Json:
        """All text of one choice in a reply."""
        ...

    @abstractmethod
    def _logprobs(self, index: int, parts: Sequence[Output]) -> Json:
        """Log-probabilities of the tokens of ``parts``, which follow those asked for before."""
        ...


class CompletionShape(Frame):
    """``text_completion``, for whole replies and chunks alike.

    An echo comes at once, but where its log-probabilities are wanted it comes with them, before the first token.
    """

    def __init__(self, call: Call, tokenizer: Tokenizer) -> None:
        self._offsets = [0] * len(call.jobs)
        self._scored = {
            index
            for index, job in enumerate(call.jobs)
            if job.params.prompt_logprobs is not None and job.params.logprobs is not None
        }
        super().__init__(call, tokenizer, "text_completion", "text_completion")

    def opening(self) -> bytes:
        echoes = [(index, job.echo) for index, job in enumerate(self._call.jobs) if index not in self._scored]
        return b"".join(self._event([self._choice(i, self._part(e), None, None)], None) for i, e in echoes if e)

    def _part(self, text: str) -> Json:
        return {"text": text}

    def _body(self, index: int, text: str) -> Json:
        return {"text": self._call.jobs[index].echo + text}

    def _text(self, index: int, output: Output) -> str:
        return self._call.jobs[index].echo + output.text if index in self._scored else output.text

    def _logprobs(self, index: int, parts: Sequence[Output]) -> Json:
        start, prompt = self._offsets[index], self._call.jobs[index].prompt if index in self._scored else ()
        self._scored.discard(index)
        tokens = [*prompt, *(token for part in parts for token in part.token_ids)]
        self._offsets[index] += sum(len(self._tokenizer.token_text(token)) for token in tokens)
        return completion_logprobs(self._tokenizer, parts, start, prompt)


def text_of(parts: Sequence[Output]) -> str:
    """The text of one choice."""
    return "".join(part.text for part in parts)


def reason_of(parts: Sequence[Output]) -> FinishReason | None:
    """Why one choice ended."""
    return parts[-1].finish_reason if parts else None

"""The shape of chat replies: the answer, and beside it reasoning and tool calls where a parser finds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from energyopt.core.records import FinishReason
from engine.output import Output
from engine.parsers.events import Arguments, CallBegun, Event, Said, Thought
from engine.ports import Tokenizer

from .call import Call
from .logprobs import chat_logprobs
from .shapes import Frame, Json
from .tools import Reading


class ChatShape(Frame):
    """``chat.completion`` and ``chat.completion.chunk``. Without a ``reading`` every text is the answer.

    Reasoning goes out under both names that clients look for, ``reasoning_content`` and ``reasoning``.
    """

    def __init__(self, call: Call, tokenizer: Tokenizer, reading: Reading | None = None) -> None:
        self._reading = reading or Reading()
        self._parsers = [self._reading.parser() for _ in call.jobs]
        self._called = [False] * len(call.jobs)
        super().__init__(call, tokenizer, "chat.completion.chunk", "chat.completion")

    def opening(self) -> bytes:
        role = {"delta": {"role": "assistant", "content": ""}}
        return b"".join(self._event([self._choice(i, role, None, None)], None) for i in range(len(self._call.jobs)))

    def chunk(self, index: int, output: Output, usage: Json | None) -> bytes:
        if self._parsers[index] is None:
            return super().chunk(index, output, usage)
        events = self._read(index, output.text, ended=output.finish_reason is not None)
        deltas = [self._delta(event) for event in events]
        wants = self._wants_logprobs[index] and output.token_ids
        if not deltas and (output.finish_reason is not None or usage is not None or wants):
            deltas = [{}]
        written = []
        for number, delta in enumerate(deltas, 1):
            logprobs = self._logprobs(index, [output]) if wants and number == 1 else None
            last = number == len(deltas)
            reason = self._reason(index, output.finish_reason) if last else None
            written.append(
                self._event([self._choice(index, {"delta": delta}, logprobs, reason)], usage if last else None)
            )
        return b"".join(written)

    def _read(self, index: int, text: str, *, ended: bool) -> list[Event]:
        """What the parser finds; reasoning and further calls that the client does not want are dropped."""
        parser = self._parsers[index]
        if parser is None:
            return [Said(text)]
        events = [*parser.feed(text), *(parser.close() if ended else ())]
        self._called[index] = self._called[index] or any(isinstance(event, CallBegun) for event in events)
        return [event for event in events if self._shown(event)]

    def _shown(self, event: Event) -> bool:
        """Whether the client wants to hear of it."""
        if isinstance(event, Thought):
            return self._reading.show_reasoning
        return not (self._reading.wish.single and isinstance(event, CallBegun | Arguments) and event.index > 0)

    def _reason(self, index: int, reason: FinishReason | None) -> str | None:
        return "tool_calls" if reason is FinishReason.STOP and self._called[index] else reason

    def _delta(self, event: Event) -> Json:
        if isinstance(event, Said):
            return {"content": event.text}
        if isinstance(event, Thought):
            return {"reasoning_content": event.text, "reasoning": event.text}
        if isinstance(event, Arguments):
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
        return {"tool_calls": [{"index": event.index, **self._call_of(event, "")}]}

    def _call_of(self, call: CallBegun, arguments: str) -> Json:
        id = self._reading.call_id(call.index, call.name, call.id)
        return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _part(self, text: str) -> Json:
        return {"delta": {"content": text} if text else {}}

    def _body(self, index: int, text: str) -> Json:
        message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
        if self._parsers[index] is None:
            return {"message": message}
        events = self._read(index, text, ended=True)
        answer, thought = _joined(events, Said), _joined(events, Thought)
        if thought:
            message |= {"reasoning_content": thought, "reasoning": thought}
        calls = [event for event in events if isinstance(event, CallBegun)]
        if calls:
            message["tool_calls"] = [self._call_of(call, _arguments(events, call.index)) for call in calls]
        return {"message": {**message, "content": answer or (None if calls else "")}}

    def _logprobs(self, index: int, parts: Sequence[Output]) -> Json:
        return chat_logprobs(self._tokenizer, parts)


def _joined(events: Iterable[Event], kind: type[Said] | type[Thought]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def _arguments(events: Iterable[Event], index: int) -> str:
    return "".join(event.text for event in events if isinstance(event, Arguments) and event.index == index)

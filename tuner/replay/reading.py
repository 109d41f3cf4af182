"""A streamed answer as it comes in: when its first token came, how many tokens there were, and when.

Tokens are counted by the server's ``usage`` only: counting chunks is wrong as soon as one holds several tokens, and
tokenizing the text again gives other counts than were generated. The first token is the first text that is not empty,
be it content, reasoning or the arguments of a tool; a chunk that only names the role is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from pydantic_core import from_json

from energyopt.core.errors import EnergyoptError, EngineError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.units import Seconds

from .ask import Ask, Reply
from .tokens import spread_tokens

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
MAX_TEXT = 16 * 2**20


class StreamReading:
    """Takes the events of one answer; ``finish`` or ``fail`` makes the Reply. Belongs to one request."""

    def __init__(self, ask: Ask, sent: Seconds) -> None:
        self._ask, self._sent = ask, sent
        self._times: list[Seconds] = []
        self._sizes: list[int] = []
        self._counts: list[int | None] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tools: dict[int, dict[str, str]] = {}
        self._usage: Mapping[str, object] | None = None
        self._usage_at = 0
        self._reason: str | None = None
        self._odd: Counter[str] = Counter()
        self._size = 0
        self.done = False
        self.error: EnergyoptError | None = None

    @property
    def started(self) -> bool:
        """Whether a first token has come."""
        return bool(self._times)

    def event(self, data: bytes, at: Seconds) -> None:
        """One event that arrived ``at``. A fault of the server is kept in ``error``; nothing is raised."""
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = from_json(data)
        except ValueError:
            self.error = EngineError(f"The server sent an event that is not JSON: {data[:80]!r}.")
            return
        if not isinstance(chunk, dict):
            self.error = EngineError(f"The server sent an event that is not an object: {data[:80]!r}.")
        elif chunk.get("error"):
            self.error = EngineError(f"The server ended the stream with an error: {_message(chunk['error'])}.")
        else:
            self._chunk(chunk, at)

    def _chunk(self, chunk: Mapping[str, object], at: Seconds) -> None:
        if chunk.get("object") not in ("chat.completion.chunk", "text_completion"):
            self._odd["wrong_object"] += 1
        usage, choices = chunk.get("usage"), chunk.get("choices")
        if isinstance(usage, dict):
            self._usage = usage
            self._usage_at = len(self._times) + 1
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._choice(choices[0], usage if isinstance(usage, dict) else None, at)

    def _choice(self, choice: Mapping[str, object], usage: Mapping[str, object] | None, at: Seconds) -> None:
        delta = choice.get("delta")
        part: Mapping[str, object] = delta if isinstance(delta, dict) else choice
        size = self._take(self._content, part.get("content", part.get("text")))
        size += self._take(self._reasoning, part.get("reasoning_content") or part.get("reasoning"))
        size += self._take_tools(part.get("tool_calls"))
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._reason = reason
        if size:
            self._times.append(at)
            self._sizes.append(size)
            told = usage.get("completion_tokens") if usage is not None else None
            self._counts.append(told if isinstance(told, int) else None)
        elif reason is None:
            self._odd["role_only" if "role" in part else "empty_chunk"] += 1

    def _take(self, parts: list[str], text: object) -> int:
        if not isinstance(text, str) or not text:
            return 0
        self._size += len(text)
        if self._size <= MAX_TEXT:
            parts.append(text)
        return len(text)

    def _take_tools(self, calls: object) -> int:
        size = 0
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            index = call.get("index")
            tool = self._tools.setdefault(
                index if isinstance(index, int) else 0, {"id": "", "name": "", "arguments": ""}
            )
            pieces = {"id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
            for name, piece in pieces.items():
                if isinstance(piece, str) and self._size <= MAX_TEXT:
                    tool[name] += piece
                    size += len(piece)
                    self._size += len(piece)
        return size

    def finish(self, at: Seconds) -> Reply:
        """The answer ended ``at``, or the connection did."""
        if self.error is not None:
            return self.fail(self.error, at)
        if self._reason is None and not self.done:
            return self.fail(EngineError("The stream ended before the answer did: no finish_reason and no [DONE]."), at)
        if not self.done:
            self._odd["no_done"] += 1
        return self._reply(at, _REASONS.get(self._reason or "stop", FinishReason.STOP), None)

    def fail(self, error: EnergyoptError, at: Seconds) -> Reply:
        """The request failed ``at``; the tokens that came are kept."""
        return self._reply(at, FinishReason.ERROR, error)

    def leave(self, at: Seconds) -> Reply:
        """The user left as planned."""
        return replace(self._reply(at, FinishReason.ABORT, None), left=True)

    def stop(self, at: Seconds) -> Reply:
        """Whoever loads the server stops doing so; the user would have waited on."""
        return replace(self._reply(at, FinishReason.ABORT, None), stopped=True)

    def _reply(self, at: Seconds, reason: FinishReason, error: EnergyoptError | None) -> Reply:
        told = self._told("completion_tokens")
        count = len(self._times) if told is None else told
        shares, exact = spread_tokens(count, self._sizes, self._counts)
        times = tuple(time for time, share in zip(self._times, shares, strict=True) for _ in range(share))
        asked = self._told("prompt_tokens")
        self._note(count, reason)
        last = self._times[-1] if self._times else at
        complete = reason not in (FinishReason.ERROR, FinishReason.ABORT)
        record = RequestRecord(
            request_id=self._ask.id,
            arrival=self._sent,
            end=last if complete else at,
            prompt_tokens=asked or 0,
            cached_tokens=self._cached(),
            output_tokens=count,
            finish_reason=reason,
            token_times=times,
            session=self._ask.session,
        )
        return Reply(
            record,
            text="".join(self._content),
            reasoning="".join(self._reasoning),
            error=error,
            counted=told is not None,
            asked_counted=asked is not None,
            spread=told is not None and not exact,
            first_chunk=shares[0] if shares else 1,
            oddities=tuple(sorted(self._odd)),
            sent=self._sent,
            finish=self._reason,
            tool_calls=tuple(self._tools.values()),
        )

    def _note(self, count: int, reason: FinishReason) -> None:
        if reason in (FinishReason.ERROR, FinishReason.ABORT):
            return
        if self._usage is None:
            self._odd["no_usage"] += 1
        elif self._usage_at <= len(self._times) and not all(self._counts):
            self._odd["usage_early"] += 1
        if self._times and count > len(self._times):
            self._odd["several_tokens_a_chunk"] += 1
        if not self._times and count:
            self._odd["no_text"] += 1
        if count != self._ask.output_tokens and self._usage is not None:
            self._odd["other_length"] += 1

    def _told(self, field: str) -> int | None:
        value = None if self._usage is None else self._usage.get(field)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def _cached(self) -> int | None:
        """None where the server does not tell: its cache may have found all of the prompt, or nothing."""
        details = None if self._usage is None else self._usage.get("prompt_tokens_details")
        value = details.get("cached_tokens") if isinstance(details, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _message(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return str(text)[:200].rstrip(".")

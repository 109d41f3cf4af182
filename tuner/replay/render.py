"""From a call of a trace to a prompt: recorded text, or filler of the recorded length with the recorded reuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from energyopt.core.errors import ConfigError

from ..workload.trace import Call, Message
from .ask import Prompt, Reply
from .content import Filler, IdFiller, WordFiller, fill

Answers = Literal["recorded", "live"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a server counts filler: ``overhead`` tokens for the frame of a chat, ``per_word`` tokens a word."""

    overhead: int = 0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        """Words for a prompt of ``tokens`` tokens; at least one."""
        return max(1, round((tokens - self.overhead) / self.per_word))


@dataclass(slots=True)
class Conversation:
    """What one agent has said and heard so far in this session. ``apart``: it shares no system prompt with others."""

    session: str
    salt: str
    apart: bool = True
    messages: list[Message] = field(default_factory=list)


class ChatRenderer:
    """Prompts as chats. ``answers`` says what stands in the history of a growing session: the live or recorded ones."""

    def __init__(
        self, block_tokens: int | None, *, calibration: Calibration, answers: Answers = "live", seed: int = 0
    ) -> None:
        self._block, self._calibration, self._answers = block_tokens, calibration, answers
        self._filler: Filler = WordFiller(seed)

    def prompt(self, talk: Conversation, call: Call, place: str) -> Prompt:
        """The prompt of ``call``; ``place`` is unique to it within its session."""
        if call.messages or call.continues:
            if not call.continues:
                talk.messages = []
            new = list(call.messages) or [self._filled(call.added_tokens, call.added_blocks, talk, place, overhead=0)]
            talk.messages += _marked(new, talk) if not call.continues and talk.salt else new
            return Prompt(messages=tuple(talk.messages))
        overhead = self._calibration.overhead
        talk.messages = [self._filled(call.input_tokens, call.blocks, talk, place, overhead=overhead)]
        return Prompt(messages=tuple(talk.messages))

    def heard(self, talk: Conversation, call: Call, reply: Reply) -> None:
        """Add the answer to the history."""
        text = reply.text
        if self._answers == "recorded" and call.answer is not None:
            text = call.answer
        elif self._answers == "recorded":
            words = self._filler.block(f"{talk.session}/{len(talk.messages)}/answer", call.output_tokens or 1)
            text = " ".join(map(str, words))
        talk.messages.append({"role": "assistant", "content": text})

    def _filled(
        self, tokens: int | None, blocks: Sequence[int], talk: Conversation, place: str, *, overhead: int
    ) -> Message:
        if tokens is None:
            raise ConfigError(f"Session {talk.session!r} has a call with neither text nor a length.")
        calibration = Calibration(overhead, self._calibration.per_word)
        words = fill(
            self._filler,
            blocks,
            None if self._block is None else max(1, round(self._block / calibration.per_word)),
            calibration.words(tokens),
            salt=talk.salt,
            unique=f"{talk.session}/{place}",
        )
        return {"role": "user", "content": " ".join(map(str, words))}


class IdRenderer:
    """Prompts as token ids, exact to the token. Needs complete prompts with lengths; texts raise ConfigError."""

    def __init__(self, block_tokens: int | None, *, seed: int = 0, ids: range | None = None) -> None:
        self._block = block_tokens
        self._filler = IdFiller(seed) if ids is None else IdFiller(seed, ids)

    def prompt(self, talk: Conversation, call: Call, place: str) -> Prompt:
        if call.input_tokens is None:
            raise ConfigError(
                f"Session {talk.session!r} has texts, whose tokens are unknown here: replay it as chats instead."
            )
        unique = f"{talk.session}/{place}"
        tokens = fill(self._filler, call.blocks, self._block, max(1, call.input_tokens), salt=talk.salt, unique=unique)
        return Prompt(ids=[int(str(token)) for token in tokens])

    def heard(self, talk: Conversation, call: Call, reply: Reply) -> None:
        """Recorded prompts hold recorded answers; the live one is not needed."""


Renderer = ChatRenderer | IdRenderer


def _marked(messages: Sequence[Message], talk: Conversation) -> list[Message]:
    """The first text that is this conversation's own with a mark in front, so that no other start shares more."""
    own = [index for index, message in enumerate(messages) if talk.apart or message.get("role") != "system"]
    place = own[0] if own else 0
    return [
        {**message, "content": f"({talk.salt}) {message.get('content') or ''}"} if index == place else message
        for index, message in enumerate(messages)
    ]

"""One request of a replay and what became of it, and the port that sends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from energyopt.core.errors import EnergyoptError
from energyopt.core.records import RequestRecord
from energyopt.core.units import Seconds

from ..workload.trace import Message


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: a conversation, or token ids; exactly one of both is set."""

    messages: Sequence[Message] | None = None
    ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    ``due`` is when it should leave (``Clock.now()`` seconds). ``give_up`` seconds after it was sent the user leaves as
    planned; ``patience`` is how long the user waits for the first token, after which the request has failed.
    ``expected_input`` and ``expected_cached`` are what the trace predicts, None where it does not. ``grown``: the
    prompt holds earlier answers, so if it is too long the conversation is over, which is no failure.
    """

    id: str
    session: str
    prompt: Prompt
    output_tokens: int
    due: Seconds
    expected_input: int | None = None
    expected_cached: int | None = None
    give_up: Seconds | None = None
    patience: Seconds | None = None
    warming: bool = False
    grown: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of an Ask.

    ``record`` has the times as the client saw them. ``counted``: the server told its token counts; without them
    ``record`` counts chunks, which are not tokens. ``spread``: some chunk held several tokens and the server did not
    say how many, so the tokens were spread over the chunks by length of text. ``first_chunk`` counts the tokens of the
    first chunk. ``left`` says that the user left as planned, ``stopped`` that the load's end aborted it: such a reply
    is a sample of how long it had waited by then. ``asked_counted``: the server told how long the prompt was, without
    which ``record.prompt_tokens`` means nothing. ``oddities`` names what was unusual in the stream.
    """

    record: RequestRecord
    text: str = ""
    reasoning: str = ""
    error: EnergyoptError | None = None
    counted: bool = True
    asked_counted: bool = True
    spread: bool = False
    first_chunk: int = 1
    left: bool = False
    stopped: bool = False
    oddities: tuple[str, ...] = ()
    sent: Seconds | None = None
    finish: str | None = None
    tool_calls: tuple[Mapping[str, object], ...] = ()


class ReplayClient(Protocol):
    """Sends one request and waits for its end.

    A refused or failed request comes back as a Reply with ``error``; EngineDeadError is raised, because nothing can
    follow it.
    """

    async def send(self, ask: Ask) -> Reply: ...

    def abort(self, request_id: str) -> None:
        """End a request early; its ``send`` returns with an aborted record. An unknown id is ignored."""
        ...

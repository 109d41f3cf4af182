"""What is asked of an engine: sessions of turns, and how they arrive.

A workload is data, so a trial can be repeated in another process. How it is generated or read from a trace is the
business of ``tuner/workload``.
"""

from __future__ import annotations

from pydantic import Field

from .config import Config
from .units import Seconds


class Turn(Config):
    """One user message and the length of the answer it wants.

    The answer is exactly ``output_tokens`` long: the load generator asks to ignore end-of-text, so two
    configurations do the same work. ``think_time`` passes before the turn is sent.
    """

    text: str
    output_tokens: int = Field(ge=1)
    think_time: Seconds = Field(Seconds(0.0), ge=0)


class Session(Config):
    """A conversation: the live answers become part of the history of the next turn.

    ``arrival`` is the offset from the start of the load in an open loop; None in a closed loop, where a session
    starts when a lane is free.
    """

    id: str
    turns: tuple[Turn, ...] = Field(min_length=1)
    system: str | None = None
    arrival: Seconds | None = Field(None, ge=0)


class Workload(Config):
    """Sessions and the number of lanes that work on them at once (closed loop: a lane holds one session).

    ``seed`` is what the generator was given, kept so that a report can name it.
    """

    name: str
    seed: int
    sessions: tuple[Session, ...] = Field(min_length=1)
    concurrency: int = Field(ge=1)

    @property
    def output_tokens(self) -> int:
        return sum(turn.output_tokens for session in self.sessions for turn in session.turns)

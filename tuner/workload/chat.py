"""Chat-like workloads from a seed: sessions of a few turns behind a shared system prompt.

The text is made of English words in sentences, so it splits into tokens as text does (about 1.3 tokens a word), but it
means nothing. Two seeds share no user text and no system text, so a prefix cache warmed by one is cold for the other;
sessions of one seed share their system prompt, which is what a prefix cache is for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from energyopt.core.errors import ConfigError
from energyopt.core.workload import Session, Turn, Workload

from .lengths import Lengths
from .words import ADJECTIVES, NOUNS, OPENERS, VERBS

_USER = Lengths(median=40, spread=0.6, low=8, high=200)
_ANSWER = Lengths(median=48, spread=0.5, low=8, high=128)


@dataclass(frozen=True, slots=True)
class ChatShape:
    """What conversations look like. ``user`` and ``system_words`` count words, ``answer`` counts tokens.

    ``turns`` is the inclusive range of turns a session; ``systems`` distinct system prompts are shared by the sessions.
    """

    system_words: int = 120
    systems: int = 1
    user: Lengths = _USER
    answer: Lengths = _ANSWER
    turns: tuple[int, int] = (2, 4)

    def __post_init__(self) -> None:
        if not 1 <= self.turns[0] <= self.turns[1]:
            raise ConfigError(f"turns {self.turns} is no range: it needs 1 <= first <= second.")
        if self.systems < 1 or self.system_words < 0:
            raise ConfigError(f"systems {self.systems} must be >= 1 and system_words {self.system_words} >= 0.")


def chat_workload(
    seed: int, *, sessions: int = 512, concurrency: int = 8, shape: ChatShape | None = None, name: str = "chat"
) -> Workload:
    """A closed-loop chat workload; equal arguments give an equal workload in every process.

    Raises ConfigError for counts below 1.
    """
    if sessions < 1 or concurrency < 1:
        raise ConfigError(f"sessions {sessions} and concurrency {concurrency} must be >= 1.")
    shape = shape or ChatShape()
    rng = random.Random(f"{name}/{seed}")
    systems = [_system(rng, seed, number, shape.system_words) for number in range(shape.systems)]
    return Workload(
        name=name,
        seed=seed,
        sessions=tuple(
            _session(rng, seed, number, systems[number % len(systems)], shape) for number in range(sessions)
        ),
        concurrency=concurrency,
    )


def _session(rng: random.Random, seed: int, number: int, system: str | None, shape: ChatShape) -> Session:
    turns = tuple(_turn(rng, seed, number, turn, shape) for turn in range(rng.randint(*shape.turns)))
    return Session(id=f"chat-{seed}-{number}", turns=turns, system=system)


def _turn(rng: random.Random, seed: int, session: int, turn: int, shape: ChatShape) -> Turn:
    """The label at the front makes every text unique from its first words on, whatever the words drawn."""
    label = f"Note {seed}.{session}.{turn}:"
    words = shape.user.draw(rng)
    return Turn(text=f"{label} {_prose(rng, words)}", output_tokens=shape.answer.draw(rng))


def _system(rng: random.Random, seed: int, number: int, words: int) -> str | None:
    if words == 0:
        return None
    return f"Desk {seed}.{number}: you answer briefly and politely. {_prose(rng, words)}"


def _prose(rng: random.Random, words: int) -> str:
    """Sentences with ``words`` words in all."""
    drawn: list[str] = []
    while len(drawn) < words:
        sentence = _sentence(rng)[: words - len(drawn)]
        sentence[0] = sentence[0].capitalize()
        sentence[-1] += "."
        drawn += sentence
    return " ".join(drawn)


def _sentence(rng: random.Random) -> list[str]:
    """Six or more words in an English order."""
    words = [rng.choice(OPENERS), "the", rng.choice(ADJECTIVES), rng.choice(NOUNS), rng.choice(VERBS), "the"]
    if rng.random() < 0.5:
        words.append(rng.choice(ADJECTIVES))
    return [*words, rng.choice(NOUNS), "and", "the", rng.choice(NOUNS)]

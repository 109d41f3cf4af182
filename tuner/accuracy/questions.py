"""What is asked: the same questions every time, so that two configurations can be compared answer by answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..replay.content import COMMON

Json = dict[str, Any]

PLAIN = (
    "Name three rivers and say where each of them ends.",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a lighthouse.",
    "What is 17 times 23? Show each step.",
    "Translate to French: The train leaves at noon.",
    "List the planets of the solar system in order.",
    "Write a Python function that reverses a list.",
    "Summarize the story of Cinderella in three sentences.",
    "What is the difference between speed and velocity?",
    "Give one argument for and one against working from home.",
    "Continue the sequence: 2, 4, 8, 16,",
    "Describe how to make tea to somebody who has never done it.",
)

WEATHER: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["city"],
    "additionalProperties": False,
}
SUM: Json = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "number"}}},
    "required": ["numbers"],
    "additionalProperties": False,
}
TOOLS: tuple[Json, ...] = (
    {"type": "function", "function": {"name": "weather", "description": "Weather now.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "add", "description": "Adds numbers.", "parameters": SUM}},
)
TOOL_SCHEMAS: Mapping[str, Json] = {"weather": WEATHER, "add": SUM}
WITH_TOOLS = (
    "What is the weather in Oslo now, in celsius?",
    "Add 12.5, 7 and 30 with the tool.",
    "Say hello, and use no tool.",
    "What is the weather in Quito?",
)

PERSON: Json = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
STRUCTURED = ("Make up a person with name and age, as JSON.", "Another person with name and age, as JSON.")


@dataclass(frozen=True, slots=True)
class Needle:
    """A number hidden in a text of about ``words`` words, and the question for it."""

    prompt: str
    answer: str


def needles(words: int, depths: Sequence[float] = (0.1, 0.5, 0.9), seed: int = 0) -> list[Needle]:
    """One for each depth (share of the text in front of the number)."""
    found = []
    for depth in depths:
        rng = random.Random(f"needle/{seed}/{words}/{depth}")
        answer = str(rng.randrange(10_000, 100_000))
        text = rng.choices(COMMON, k=words)
        text.insert(round(depth * words), f". The secret number is {answer}. ")
        prompt = f"{' '.join(text)}\n\nWhat is the secret number in the text above? Answer with the number only."
        found.append(Needle(prompt, answer))
    return found

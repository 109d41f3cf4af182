"""How a server counts our filler: two small requests, a line through their prompt tokens."""

from __future__ import annotations

from energyopt.core.clock import Clock
from energyopt.core.errors import EngineError
from energyopt.core.units import Seconds

from .ask import Ask, Prompt, ReplayClient
from .content import WordFiller
from .render import Calibration

_FEW, _MANY = 16, 272


async def calibrate(client: ReplayClient, clock: Clock) -> Calibration:
    """The overhead of a chat with one message and the tokens of a word. Raises EngineError if the server refuses.

    Without usage in the replies nothing is known and a word counts as a token.
    """
    few, many = [await _prompt_tokens(client, clock, words) for words in (_FEW, _MANY)]
    if few is None or many is None or many <= few:
        return Calibration()
    per_word = (many - few) / (_MANY - _FEW)
    return Calibration(overhead=max(0, round(few - _FEW * per_word)), per_word=per_word)


async def _prompt_tokens(client: ReplayClient, clock: Clock, words: int) -> int | None:
    text = " ".join(map(str, WordFiller().block("calibration", words)))
    prompt = Prompt(messages=({"role": "user", "content": text},))
    reply = await client.send(Ask(f"calibration/{words}", "calibration", prompt, 1, Seconds(clock.now())))
    if reply.error is not None:
        raise EngineError(f"The server does not answer a first short request: {reply.error}") from reply.error
    return reply.record.prompt_tokens if reply.asked_counted else None

"""The embedded engine as the load sees it: messages in, an answer with its record out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from energyopt.core.clock import Clock
from energyopt.core.errors import EnergyoptError, EngineDeadError, EngineError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.units import Seconds
from engine.ports import ServingEngine
from engine.request import SamplingParams

from ..load import Answer, Message

Render = Callable[[Sequence[Message]], Sequence[int]]
"""Chat template and tokenizer in one: a conversation to the token ids of its prompt, ready for the answer."""


class EngineClient:
    """A ``ChatClient`` over a ``ServingEngine`` in this process. ``clock`` is the engine's."""

    def __init__(self, engine: ServingEngine, render: Render, clock: Clock) -> None:
        self._engine = engine
        self._render = render
        self._clock = clock

    async def ask(self, messages: Sequence[Message], *, output_tokens: int, request_id: str, session: str) -> Answer:
        """Exactly ``output_tokens`` greedy tokens. Raises EngineDeadError; other typed errors are in the Answer."""
        prompt = self._render(messages)
        params = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        arrival = self._clock.now()
        parts: list[str] = []
        try:
            async for output in self._engine.generate(prompt, params, request_id=request_id, session=session):
                parts.append(output.text)
                if output.record is not None:
                    return Answer("".join(parts), output.record)
            raise EngineError(f"The stream of request {request_id} ended without its record.")
        except EngineDeadError:
            raise
        except EnergyoptError as error:
            record = self._failed(request_id, session, len(prompt), arrival)
            return Answer("".join(parts), record, error)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def _failed(self, request_id: str, session: str, prompt_tokens: int, arrival: Seconds) -> RequestRecord:
        return RequestRecord(
            request_id=request_id,
            arrival=arrival,
            end=self._clock.now(),
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            output_tokens=0,
            finish_reason=FinishReason.ERROR,
            session=session,
        )

"""The embedded engine as the load sees it: a conversation in, an answer with its record out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from energyopt.core.clock import Clock
from energyopt.core.errors import EnergyoptError, EngineDeadError, EngineError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.units import Seconds
from engine.ports import ServingEngine
from engine.request import SamplingParams

from ..replay.ask import Ask, Reply
from ..workload.trace import Message

Render = Callable[[Sequence[Message]], Sequence[int]]
"""Chat template and tokenizer in one: a conversation to the token ids of its prompt, ready for the answer."""


class EngineClient:
    """A ``ReplayClient`` over a ``ServingEngine`` in this process. ``clock`` is the engine's.

    Generates exactly as many tokens as asked for, greedily, whatever the model wants. Users who leave are for servers:
    ``give_up`` and ``patience`` raise ValueError.
    """

    def __init__(self, engine: ServingEngine, render: Render, clock: Clock) -> None:
        self._engine = engine
        self._render = render
        self._clock = clock

    async def send(self, ask: Ask) -> Reply:
        """Raises EngineDeadError; other typed errors are in the Reply."""
        if ask.give_up is not None or ask.patience is not None:
            raise ValueError("users of the engine in this process wait to the end.")
        ids, messages = ask.prompt.ids, ask.prompt.messages
        prompt = self._render(messages or ()) if ids is None else ids
        params = SamplingParams(max_tokens=ask.output_tokens, temperature=0.0, ignore_eos=True)
        sent = self._clock.now()
        parts: list[str] = []
        try:
            async for output in self._engine.generate(prompt, params, request_id=ask.id, session=ask.session):
                parts.append(output.text)
                if output.record is not None:
                    stopped = output.record.finish_reason is FinishReason.ABORT
                    return Reply(output.record, "".join(parts), stopped=stopped, sent=sent)
            raise EngineError(f"The stream of request {ask.id} ended without its record.")
        except EngineDeadError:
            raise
        except EnergyoptError as error:
            return Reply(self._failed(ask, len(prompt), sent), "".join(parts), error=error, sent=sent)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def _failed(self, ask: Ask, prompt_tokens: int, sent: Seconds) -> RequestRecord:
        return RequestRecord(
            request_id=ask.id,
            arrival=sent,
            end=self._clock.now(),
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            output_tokens=0,
            finish_reason=FinishReason.ERROR,
            session=ask.session,
        )

"""When a request is complete: after which token, and why."""

from __future__ import annotations

from energyopt.core.records import FinishReason

from .request import Request


class Endings:
    """Judges the newest token of a request. ``eos_ids`` end a text, unless the request ignores them.

    Stop strings are not seen here: only whoever makes text of the tokens can find them.
    """

    def __init__(self, eos_ids: frozenset[int]) -> None:
        self._eos_ids = eos_ids

    def reason(self, request: Request) -> FinishReason | None:
        """Why the request ends with its newest token; None if it goes on. Its guide takes the token over."""
        token, params, guide = request.output[-1], request.params, request.guide
        length = len(request.output)
        if guide is not None:
            guide.advance(token)
            if guide.failure is not None:
                return FinishReason.ERROR
            if guide.finished:
                return FinishReason.STOP
        if length >= params.min_tokens and (
            (token in self._eos_ids and not params.ignore_eos) or token in params.stop_token_ids
        ):
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= params.max_tokens else None

    def by_id(self, request: Request) -> bool:
        """Whether the newest token is one that ends a text, and so is no part of it."""
        token = request.output[-1]
        return token in self._eos_ids or token in request.params.stop_token_ids

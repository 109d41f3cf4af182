"""How many prompt tokens a server computed in a window, as far as its replies told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from energyopt.core.records import cached_total
from energyopt.core.units import Tokens

from ..counting import Window
from .ask import Reply


@dataclass(frozen=True, slots=True)
class AskedTokens:
    """``tokens`` include those ``cached``; None is unknown."""

    tokens: Tokens | None
    cached: Tokens | None


def count_asked(window: Window, replies: Sequence[Reply]) -> AskedTokens:
    """Prompt tokens of the window, of every request that was not refused.

    A prompt belongs to its first token, before which it was computed. But a server tells its length at the end of the
    answer, so what the end of the load aborted has none: where that is so, every prompt belongs to the end of its
    request instead, at both edges alike. Where that does not help (users left within the window), nothing is known.
    """
    served = [reply for reply in replies if reply.record.token_times or not reply.record.failed]
    begun = [reply for reply in served if (reply.record.first_token or reply.record.end) in window]
    ended = [reply for reply in served if reply.record.end in window]
    for counted in (begun, ended):
        if all(reply.asked_counted for reply in counted):
            records = [reply.record for reply in counted]
            cached = cached_total(records)
            total = Tokens(sum(record.prompt_tokens for record in records))
            return AskedTokens(total, None if cached is None else Tokens(cached))
    return AskedTokens(None, None)

"""What the engine tells the rest: one record a step, one record a finished request.

Records are plain frozen dataclasses because a step makes one per batch. All times are ``Clock.now()`` seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .units import Seconds


class Phase(StrEnum):
    """What a request did in a step. The step that yields the first output token is still prefill."""

    PREFILL = "prefill"
    DECODE = "decode"


class FinishReason(StrEnum):
    """Why a request ended. ``STOP`` covers end-of-text, stop strings and stop ids, as in OpenAI's API.

    ``DEADLINE``: it was still waiting or running when its own time limit passed.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline"


@dataclass(slots=True)
class StepShare:
    """One request's part in one step. Never changed; not frozen, because a frozen one costs four times as much to make.

    ``computed_tokens`` were run through the model in this step; ``context_tokens`` stood in the KV cache before it.
    ``cached_tokens`` counts prompt tokens taken from the cache instead of computed, by tier ("device", "host",
    "disk", "shared"); it is non-empty only in the step that admits the request.
    """

    request_id: str
    phase: Phase
    computed_tokens: int
    context_tokens: int
    cached_tokens: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One pass of the model over a batch, on ``devices`` (identities as telemetry names them)."""

    start: Seconds
    end: Seconds
    devices: tuple[str, ...]
    shares: tuple[StepShare, ...]

    @property
    def computed_tokens(self) -> int:
        return sum(share.computed_tokens for share in self.shares)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request as its client saw it.

    ``token_times`` are the arrival times of the output tokens (several may share one time); the first is
    ``first_token``. A request that failed, was aborted or ran out of time keeps the tokens it got. ``scheduled`` is
    when its first step began; None if it had none, or if that is not known here. ``cached_tokens`` is None where the
    engine does not tell.
    """

    request_id: str
    arrival: Seconds
    end: Seconds
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    finish_reason: FinishReason
    token_times: tuple[Seconds, ...] = ()
    session: str | None = None
    cached_by_tier: Mapping[str, int] = field(default_factory=dict)
    scheduled: Seconds | None = None

    @property
    def failed(self) -> bool:
        return self.finish_reason in (FinishReason.ABORT, FinishReason.ERROR, FinishReason.DEADLINE)

    @property
    def first_token(self) -> Seconds | None:
        return self.token_times[0] if self.token_times else None

    @property
    def ttft(self) -> Seconds | None:
        """Arrival to first token; None if none came."""
        first = self.first_token
        return None if first is None else Seconds(first - self.arrival)

    @property
    def e2e(self) -> Seconds:
        return Seconds(self.end - self.arrival)

    @property
    def gaps(self) -> tuple[Seconds, ...]:
        """Times between consecutive output tokens: the samples of ITL."""
        pairs = zip(self.token_times, self.token_times[1:], strict=False)
        return tuple(Seconds(later - earlier) for earlier, later in pairs)

    @property
    def tpot(self) -> Seconds | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        if len(self.token_times) < 2:
            return None
        return Seconds((self.token_times[-1] - self.token_times[0]) / (len(self.token_times) - 1))


def cached_total(requests: Iterable[RequestRecord]) -> int | None:
    """Prompt tokens that a cache spared several requests; None if one does not tell whose prompt was counted."""
    counted = [request.cached_tokens for request in requests if request.prompt_tokens or request.cached_tokens]
    told = [count for count in counted if count is not None]
    return sum(told) if len(told) == len(counted) else None

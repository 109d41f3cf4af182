"""What the engine streams to whoever waits for a request."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.records import FinishReason, RequestRecord

from .disagg.params import Offer
from .request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Output:
    """New text and tokens of one request, in order.

    ``text`` may be empty while a stop string or a multi-byte character is incomplete. ``finish_reason`` and
    ``record`` are set on the last one only. ``logprobs`` has one entry per token id when they were asked for,
    ``prompt_logprobs`` on the first one an entry per token of the prompt but its first.
    ``offer`` is on the last one of a prefill leg: where another engine finds the prompt's blocks. ``failure`` says why,
    where the answer could not keep its form.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    record: RequestRecord | None = None
    offer: Offer | None = None
    failure: str | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

"""One request: what its client asked, where it stands, and what it has produced.

Mutable and owned by the step loop's thread; everybody else sees ``Output`` events. It knows token ids, not text: the
front holds the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from energyopt.core.errors import RequestError
from energyopt.core.records import FinishReason, Phase
from energyopt.core.units import Seconds

from .disagg.params import Offer, Transfer
from .structured.ports import Guide, GuideSpec


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 are off.

    ``logprobs`` is the number of alternatives reported per output token (0: only the chosen one; None: off), and
    ``prompt_logprobs`` the same for the prompt's tokens; with it ``max_tokens`` may be 0: the prompt is read, no more.
    ``logit_bias`` holds pairs of token id and what is added to its logit. Before ``min_tokens`` nothing but a stop
    string or a completed guide ends the answer. ``guide`` is the form that the answer must have. A lower ``priority``
    is admitted earlier. ``timeout`` is how long after its arrival the request may still run. ``skip_special_tokens``
    False leaves the names of special tokens in the text. ``transfer`` makes the request one leg of a
    hand-over. Raises RequestError naming the OpenAI field when a value is
    out of range.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    guide: GuideSpec | None = None
    priority: int = 0
    timeout: Seconds | None = None
    skip_special_tokens: bool = True
    transfer: Transfer | None = None

    def __post_init__(self) -> None:
        allowed: tuple[tuple[str, float, float, float], ...] = (
            ("max_tokens", self.max_tokens, 1 if self.prompt_logprobs is None else 0, 2**31),
            ("temperature", self.temperature, 0, 100),
            ("top_k", self.top_k, 0, 2**31),
            ("top_p", self.top_p, 1e-6, 1),
            ("min_p", self.min_p, 0, 1),
            ("logprobs", self.logprobs if self.logprobs is not None else 0, 0, 20),
            ("prompt_logprobs", self.prompt_logprobs if self.prompt_logprobs is not None else 0, 0, 20),
            ("presence_penalty", self.presence_penalty, -2, 2),
            ("frequency_penalty", self.frequency_penalty, -2, 2),
            ("repetition_penalty", self.repetition_penalty, 1e-3, 100),
            ("min_tokens", self.min_tokens, 0, self.max_tokens),
            ("logit_bias", max((abs(bias) for _, bias in self.logit_bias), default=0), 0, 100),
            ("priority", self.priority, -(2**31), 2**31),
            ("timeout", self.timeout if self.timeout is not None else 1, 1e-3, 1e6),
        )
        for name, value, low, high in allowed:
            if not low <= value <= high:
                raise RequestError(f"{name} = {value} is not allowed: it must be between {low} and {high}.", param=name)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class Status(StrEnum):
    """``PREEMPTED`` waits like ``WAITING`` but keeps its output tokens, which are computed again.

    ``LOADING`` holds blocks that a copy from a lower tier fills.
    """

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of a chosen token and of the most likely alternatives (id -> logprob), before temperature."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


NO_BLOCK = -1
"""In a block table: nothing is kept for these positions."""


@dataclass(slots=True, eq=False)
class KvNotes:
    """What the cache notes about a request, beside its tables.

    ``covered`` tokens have their places, and ``quiet`` is the first position at which the cache has something to do
    after a step; both only save work. ``shared_boundary`` is where another prompt was seen to part from this one.
    ``tiers`` False keeps the request from asking lower tiers again, after a load that failed. ``seen`` says that the
    tiers were told of it, ``answer`` is what they last answered. ``remote`` False: the blocks that another engine has
    for it are used up, or did not come. ``offer`` is what another engine may fetch now that the request has ended.
    """

    covered: int = 0
    quiet: int = 0
    shared_boundary: int = 0
    boundaries: tuple[int, ...] = ()
    read_from: list[int] = field(default_factory=list)
    tiers: bool = True
    seen: bool = False
    answer: tuple[int, int, dict[tuple[int, int], str]] | None = None
    remote: bool = True
    offer: Offer | None = None


@dataclass(slots=True, eq=False)
class Request:
    """State of one request inside the engine. ``num_computed`` tokens have their KV in ``block_ids``.

    A model with several groups of layers has a table for each: ``block_ids`` is the first group's, ``other_tables``
    are the others'. An entry is ``NO_BLOCK`` where the group no longer reads the positions. ``guide`` has followed
    ``output`` whole, if the answer must have a form. ``scheduled`` is when its first step began. ``scores`` are the
    log-probabilities of the prompt's tokens from its second on, as far as they were asked for and are known.
    """

    id: str
    prompt: Sequence[int]
    params: SamplingParams
    arrival: Seconds
    session: str | None = None
    status: Status = Status.WAITING
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    other_tables: list[list[int]] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    cached_tokens: int = 0
    cached_by_tier: dict[str, int] = field(default_factory=dict)
    num_preemptions: int = 0
    token_times: list[Seconds] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    kv: KvNotes = field(default_factory=KvNotes)
    guide: Guide | None = None
    scheduled: Seconds | None = None
    scores: list[TokenLogprobs] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt) + len(self.output)

    @property
    def remaining(self) -> int:
        """Tokens known but not yet computed; 1 in steady decode."""
        return self.num_tokens - self.num_computed

    @property
    def unscored(self) -> int:
        """Prompt tokens whose log-probabilities are wanted and not known; the first one has none."""
        return 0 if self.params.prompt_logprobs is None else len(self.prompt) - 1 - len(self.scores)

    @property
    def phase(self) -> Phase:
        """Decode once the prompt and all but the newest token are computed."""
        return Phase.DECODE if self.output and self.remaining == 1 else Phase.PREFILL

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids of positions ``start`` to ``stop`` over prompt and output."""
        n = len(self.prompt)
        return [*self.prompt[start:stop], *self.output[max(0, start - n) : max(0, stop - n)]]

"""What the engine offers to its users (API, evaluators) and what its front needs from a tokenizer.

``EngineFront`` (front.py) satisfies ``ServingEngine``; ``GgufTokenizer``/``HfTokenizer`` (tokenizer.py) satisfy
``Tokenizer``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .batch import CacheShape
from .idle import SleepCounts
from .kv.ports import TierCounts
from .output import Output
from .request import SamplingParams
from .speculative.ports import DraftCounts


class Tokenizer(Protocol):
    """Text to token ids and back. Thread-safe."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a text (end-of-text and end-of-turn)."""
        ...

    @property
    def vocab_size(self) -> int: ...

    def at_least(self, text: str) -> int:
        """A lower bound of ``len(encode(text))``, in a fraction of the time; 0 where nothing can be said."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of ``text``. ``special`` lets markers such as ``<|im_start|>`` in the text become their single ids."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; an incomplete multi-byte character at the end becomes U+FFFD."""
        ...

    def token_text(self, token: int) -> str:
        """The text of one token, for logprobs and listings; special tokens by name."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text of their own."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to the UTF-8 of a text, also a part of a character; special tokens by name."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since start and gauges of now. Counters only grow, under abort and preemption too.

    ``prompt_tokens_by_source`` sums to the prompt tokens of admitted requests. ``loading`` requests wait for blocks
    from a lower tier (they count as waiting too); ``load_failures`` had to compute instead. ``min_hit_tokens`` is the
    shortest prefix that can be hit, None without prefix caching; ``retention_interval`` None keeps every block.
    ``tiers`` are the counters of each tier below the device, the fastest first. ``drafts`` is None where nothing is
    guessed, ``sleep`` where the engine never sleeps.
    """

    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_total: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    finished_by_reason: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens_by_source: Mapping[str, int] = field(default_factory=dict)
    loading: int = 0
    load_failures: int = 0
    min_hit_tokens: int | None = None
    retention_interval: int | None = None
    tiers: tuple[TierCounts, ...] = ()
    drafts: DraftCounts | None = None
    sleep: SleepCounts | None = None


class ServingEngine(Protocol):
    """An engine that serves requests from an asyncio program while its step loop runs on a thread of its own.

    Every accepted request ends in an Output with ``finish_reason``, or raises EngineDeadError; nothing hangs.
    """

    @property
    def cache(self) -> CacheShape: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, request_id: str, session: str | None = None
    ) -> AsyncIterator[Output]:
        """Admit a request and stream its outputs.

        Admission happens at the first iteration, which raises PromptTooLongError, RequestError (empty prompt, id in
        use), OverloadedError (queue full, with ``retry_after``) or EngineDeadError. Closing the iterator early
        aborts the request within one step.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request: its stream yields a last Output with ABORT. An unknown id is ignored: it may have ended."""
        ...

    async def reset_prefix_cache(self, tier: str | None = None) -> int:
        """Forget every cached prefix of one tier ("device", "host", "disk", "shared"), or of all.

        Returns how many blocks were forgotten; what running requests use stays theirs. Raises ConfigError for a tier
        that this engine lacks, EngineDeadError.
        """
        ...

    def stats(self) -> EngineStats:
        """A consistent snapshot; callable from any thread."""
        ...

    def close(self) -> None:
        """Abort everything, end the loop, free the device. Idempotent."""
        ...

"""The border between scheduling and computing: what the scheduler hands to a Runner, and what comes back.

A Runner never changes a request; the scheduler never sees a tensor. ``TorchRunner`` computes, the simulator's
``RooflineRunner`` predicts: both satisfy ``Runner``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes, Seconds

from .kv.layout import FullAttention, GroupSpec, RecurrentState
from .request import Request, TokenLogprobs


@dataclass(slots=True)
class ScheduledRequest:
    """Compute positions ``start`` to ``start + count`` of ``request``, whose blocks already cover them.

    Never changed; not frozen, for speed: a step makes one for each request.

    ``sample`` is True when this chunk reaches the newest known token, so that the next one is to be sampled.
    ``draft`` are guesses at the tokens after the newest known one, given only to a ``DraftVerifier`` and only with
    ``sample``: the last ``len(draft)`` of the ``count`` positions hold them. ``scored`` positions, the last ones before
    the one that samples, are asked how likely the prompt's next token is; only a ``PromptScorer`` is given any.
    """

    request: Request
    start: int
    count: int
    sample: bool
    draft: tuple[int, ...] = ()
    scored: int = 0

    @property
    def rows(self) -> int:
        """How many of the last positions' logits are wanted."""
        return self.scored + 1 + len(self.draft) if self.sample else self.scored

    def tokens(self) -> list[int]:
        """Token ids of the ``count`` positions, guesses included."""
        stop = self.start + self.count - len(self.draft)
        return [*self.request.tokens(self.start, stop), *self.draft]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy all of block ``source`` to block ``target``, before anything of the batch is computed."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work. Decodes stand before prefill chunks. ``copies`` come first, in order.

    ``since`` is when a device began to compute guesses for it: the step's time and joules count from there.
    """

    items: tuple[ScheduledRequest, ...]
    copies: tuple[BlockCopy, ...] = ()
    since: Seconds | None = None

    @property
    def num_tokens(self) -> int:
        return sum(item.count for item in self.items)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token sampled for one scheduled request, with log-probabilities if they were asked for.

    ``more`` are the tokens after it that a draft made possible: one for each guess that came true before the first
    that did not, each sampled as it would have been in a step of its own.
    """

    token: int
    logprobs: TokenLogprobs | None = None
    more: tuple[Sampled, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """One entry per batch item, in order: None where ``sample`` was False.

    ``scores`` has an entry per item too, with as many log-probabilities as were to be ``scored``; it may be empty where
    no item had any.
    """

    sampled: Sequence[Sampled | None]
    start: Seconds
    end: Seconds
    scores: Sequence[tuple[TokenLogprobs, ...]] = ()


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the runner's KV pool is: ``num_blocks`` blocks of ``block_tokens`` tokens, ``bytes_per_block`` each.

    ``groups`` are the groups of layers that share the pool, the one of ``block_tokens`` first; none named means that
    every layer reads every position. Raises ConfigError if ``block_tokens`` is not the first group's.
    """

    num_blocks: int
    block_tokens: int
    bytes_per_block: Bytes
    groups: tuple[GroupSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.groups and self.groups[0].block_tokens != self.block_tokens:
            raise ConfigError(
                f"block_tokens = {self.block_tokens} is not allowed: the first group's blocks have "
                f"{self.groups[0].block_tokens} tokens."
            )

    @property
    def all_groups(self) -> tuple[GroupSpec, ...]:
        return self.groups or (FullAttention(self.block_tokens),)


class Runner(Protocol):
    """Turns a batch into a result.

    ``run`` blocks; it is called from one thread only. It raises OutOfMemoryError or EngineError, after which the
    engine ends. KV written by an earlier ``run`` into a block stays until the block is written again: reusing a block
    needs no notice.
    """

    @property
    def cache(self) -> CacheShape: ...

    @property
    def devices(self) -> tuple[str, ...]:
        """Identities of the devices used, as telemetry names them."""
        ...

    def run(self, batch: Batch) -> StepResult: ...

    def close(self) -> None:
        """Free device memory; idempotent."""
        ...


@runtime_checkable
class DraftVerifier(Protocol):
    """What a Runner also is if it can compute several new positions of one request and sample after each of them.

    A runner without this attribute, or with 0, is never given a draft.
    """

    @property
    def max_draft_tokens(self) -> int:
        """The longest draft of one request."""
        ...


def draft_limit(runner: Runner) -> int:
    """The longest draft that a runner verifies; 0 if it verifies none, or if a group of its layers has a state.

    A recurrent state cannot go back to what it was before a wrong guess.
    """
    if any(isinstance(group, RecurrentState) for group in runner.cache.all_groups):
        return 0
    return runner.max_draft_tokens if isinstance(runner, DraftVerifier) else 0


@runtime_checkable
class PromptScorer(Protocol):
    """What a Runner also is if it can tell how likely the tokens of a prompt were."""

    @property
    def max_scored_tokens(self) -> int:
        """The most of one batch: each costs a row of logits."""
        ...


def score_limit(runner: Runner) -> int:
    """The most prompt tokens that a runner scores in one batch; 0 if it scores none."""
    return runner.max_scored_tokens if isinstance(runner, PromptScorer) else 0

"""How far rounded weights move a model's predictions: against itself in float32, token by token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.nn import functional

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes

from .batch import Batch, CacheShape, ScheduledRequest
from .native.runner import NativeRunner
from .request import Request, SamplingParams
from .runner import TorchRunner
from .runners import open_runner

AT_ONCE = 16
"""Positions of one text in one step: all but the first are passed off as guesses, since those have logits too."""
_POOL = Bytes(2**28)


@dataclass(frozen=True, slots=True)
class Divergence:
    """``nats`` is the mean of KL(float32 || candidate) over ``tokens`` positions; ``losses`` are the mean negative
    log-likelihoods of the text, in float32 and of the candidate. ``weights`` names the candidate's format."""

    nats: float
    losses: tuple[float, float]
    tokens: int
    weights: str


def divergence(config: EngineConfig, text: str, tokens: int) -> Divergence:
    """Compare ``config``'s model with itself in float32 over the first ``tokens`` of ``text``, on the CPU.

    Raises what ``open_runner`` raises; ConfigError for a text that is too short.
    """
    kv = KvConfig(memory_bytes=_POOL, prefix_caching=False)
    mine = config.model_copy(update={"device": "cpu", "kv": kv, "kv_transfer": None})
    ids, weights, other = _logits(mine, text, tokens)
    _, _, exact = _logits(mine.model_copy(update={"quantization": "none", "dtype": "float32"}), text, tokens)
    own, candidate = (functional.log_softmax(one, -1) for one in (exact, other))
    nats = (own.exp() * (own - candidate)).sum(-1).mean()
    after = torch.tensor(ids[1:])
    losses = (float(functional.nll_loss(own[:-1], after)), float(functional.nll_loss(candidate[:-1], after)))
    return Divergence(float(nats), losses, len(ids), weights)


def _logits(config: EngineConfig, text: str, tokens: int) -> tuple[list[int], str, torch.Tensor]:
    """Token ids, the weights' format and the logits (tokens, vocab) after each of them."""
    loaded, runner = open_runner(config, MonotonicClock())
    try:
        if not isinstance(runner, NativeRunner | TorchRunner):
            raise ConfigError("A divergence is computed by one rank: no layout of several is allowed.")
        ids = loaded.tokenizer.encode(text)[:tokens]
        if len(ids) < tokens:
            raise ConfigError(f"The text has {len(ids)} tokens; {tokens} are asked for.")
        if max(ids) >= loaded.tokenizer.vocab_size:
            raise ConfigError(f"The text holds the token {max(ids)}, for which the model has no embedding.")
        request = _text(runner.cache, ids)
        rows = [_rows(runner, request, at, ids[at : at + AT_ONCE]) for at in range(0, len(ids), AT_ONCE)]
        return ids, runner.weights, torch.cat(rows)
    finally:
        runner.close()


def _text(cache: CacheShape, ids: Sequence[int]) -> Request:
    """A request with blocks of its own for all of ``ids`` in every group of layers. Raises ConfigError without room."""
    needed = [-(-len(ids) // group.block_tokens) for group in cache.all_groups]
    if sum(needed) > cache.num_blocks:
        raise ConfigError(
            f"{len(ids)} tokens take {sum(needed)} KV blocks, and there is room for {cache.num_blocks}: "
            "compare over fewer tokens."
        )
    request = Request("text", tuple(ids), SamplingParams(temperature=0), MonotonicClock().now())
    ends = list(accumulate(needed))
    request.block_ids, *request.other_tables = [
        list(range(end - own, end)) for own, end in zip(needed, ends, strict=True)
    ]
    return request


def _rows(runner: NativeRunner | TorchRunner, request: Request, at: int, ids: Sequence[int]) -> torch.Tensor:
    """Logits after each of ``ids``, which are the text's from position ``at`` on."""
    return runner.logits(Batch((ScheduledRequest(request, at, len(ids), True, draft=tuple(ids[1:])),)))

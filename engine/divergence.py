"""How far rounded weights move a model's predictions: against itself in float32, token by token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes

from .batch import Batch, ScheduledRequest
from .native.runner import NativeRunner
from .request import Request, SamplingParams
from .runner import TorchRunner
from .runners import open_runner

AT_ONCE = 16
"""Positions of one text in one step: rows of their own requests that share its blocks."""
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
        weights = runner.weights if isinstance(runner, NativeRunner) else str(runner.dtype).removeprefix("torch.")
        return ids, weights, torch.cat([_rows(runner, ids, at) for at in range(0, len(ids), AT_ONCE)])
    finally:
        runner.close()


def _rows(runner: NativeRunner | TorchRunner, ids: Sequence[int], at: int) -> torch.Tensor:
    """Logits after positions ``at`` and the next. All rows of a step are stored before any is attended to."""
    blocks = list(range(-(-len(ids) // runner.cache.block_tokens)))
    items = []
    for position in range(at, min(at + AT_ONCE, len(ids))):
        request = Request(
            str(position), tuple(ids[: position + 1]), SamplingParams(temperature=0), MonotonicClock().now()
        )
        request.block_ids = blocks
        items.append(ScheduledRequest(request, position, 1, True))
    return runner.logits(Batch(tuple(items)))

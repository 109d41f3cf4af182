"""Guesses through a real model: the tokens of the plain engine, greedy and sampled, in fewer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig
from energyopt.core.units import Seconds
from engine.kv.configured import cache_for
from engine.models import LoadedModel
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler
from engine.speculative.drafts import Drafts
from engine.speculative.ngram import NgramProposer
from engine.speculative.ports import FixedDepth, Proposer

PROMPTS = ([5, 6, 7, 8] * 6, [9, 10, 11], [5, 6, 7, 8] * 6, [20, *range(40, 60), 20, 40, 41])


class Knows:
    """Guesses what the plain engine wrote, every fourth token wrongly; satisfies ``Proposer``."""

    def __init__(self, outputs: Sequence[Sequence[int]]) -> None:
        self._outputs = outputs

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        start = len(request.output)
        known = self._outputs[int(request.id[1:])][start : start + most]
        return tuple(token ^ 1 if (start + place) % 4 == 3 else token for place, token in enumerate(known))

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


def outputs(
    tiny: LoadedModel, config: EngineConfig, proposer: Proposer, depth: int, **params: Any
) -> tuple[list[list[int]], list[int], int]:
    """Tokens, then rows of each step, then guesses that came true."""
    runner = TorchRunner(tiny, config, FakeClock())
    drafts = Drafts(proposer, FixedDepth(depth), runner.max_draft_tokens)
    scheduler = Scheduler(config, cache_for(config, runner.cache), max_model_len=tiny.max_model_len, drafts=drafts)
    requests = [
        Request(f"r{i}", tuple(prompt), SamplingParams(**{"max_tokens": 48, "seed": i, **params}), Seconds(float(i)))
        for i, prompt in enumerate(PROMPTS)
    ]
    for made in requests:
        scheduler.add(made)
    rows: list[int] = []
    while (batch := scheduler.schedule()) is not None:
        rows.append(batch.num_tokens)
        scheduler.settle(batch, runner.run(batch))
        scheduler.check_integrity()
    return [made.output for made in requests], rows, drafts.counts.accepted


@pytest.mark.parametrize("blocks", [400, 40])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.05}, {"temperature": 0, "logprobs": 2}])
def test_the_same_tokens_in_fewer_steps(
    tiny: LoadedModel, tiny_config: EngineConfig, params: dict[str, Any], blocks: int
) -> None:
    config = tiny_config.model_copy(
        update={"kv": tiny_config.kv.model_copy(update={"memory_bytes": 2048 * blocks}), "max_num_seqs": 3}
    )
    plain, steps, none = outputs(tiny, config, NgramProposer(), 0, **params)
    fast, fewer, some = outputs(tiny, config, Knows(plain), 5, **params)
    guessed, _, _ = outputs(tiny, config, NgramProposer(longest=2, shortest=1), 5, **params)
    assert plain == fast == guessed
    assert none == 0
    assert some >= 40
    assert len(fewer) < 0.6 * len(steps)

"""Several ranks beside one: the runners, the requests that are asked of both, and what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, ParallelLayout
from energyopt.core.units import Seconds
from engine.batch import Runner
from engine.kv.coordinator import KvCoordinator
from engine.models import load_model, open_model
from engine.parallel.fake import ThreadCrew
from engine.parallel.runner import ParallelRunner
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from tests.engine.model.greedy import greedy

BLOCK = 4
LENGTHS = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40)
"""Below, at and above every boundary of blocks of 4 that up to 4 ranks split."""


def drive(
    runner: Runner,
    config: EngineConfig,
    lengths: Sequence[int] = LENGTHS,
    cache: KvCoordinator | None = None,
) -> list[list[int]]:
    """Greedy continuations of one prompt a length; half of the prompts share a prefix."""
    prompts = [tuple((7 * at + (number % 2) * number) % 256 for at in range(n)) for number, n in enumerate(lengths)]
    return greedy(runner, config, prompts, 6, cache=cache)


def whole(config: EngineConfig) -> TorchRunner:
    return TorchRunner(load_model(config), config, MonotonicClock())


def spread(config: EngineConfig, hire: Any = ThreadCrew, **sizes: int) -> tuple[ParallelRunner, EngineConfig]:
    changed = config.model_copy(update={"layout": ParallelLayout(**sizes)})
    return ParallelRunner(open_model(changed), changed, MonotonicClock(), hire=hire), changed


def request(prompt: Sequence[int], blocks: Sequence[int] = range(40), **params: Any) -> Request:
    made = Request("r", tuple(prompt), SamplingParams(**params), Seconds(0.0))
    made.block_ids = list(blocks)
    return made

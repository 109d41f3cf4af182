"""From prompts to greedy tokens through scheduler, cache and a runner, whatever the runner is."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.config import EngineConfig
from energyopt.core.units import Seconds
from engine.batch import Runner
from engine.flights import as_pipeline
from engine.kv.configured import cache_for
from engine.kv.coordinator import KvCoordinator
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step import StepLoop


def served(
    runner: Runner,
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    new: int,
    *,
    cache: KvCoordinator | None = None,
    max_model_len: int = 512,
) -> list[Request]:
    """The prompts as requests that were served together to their end; end-of-text does not stop them."""
    cache = cache or cache_for(config, runner.cache)
    scheduler = Scheduler(config, cache, max_model_len=max_model_len, depth=as_pipeline(runner).depth)
    loop = StepLoop(scheduler, runner, lambda settled, record: None)
    params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(prompt), params, Seconds(float(i))) for i, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add(request)
    while loop.step() or scheduler.has_work or scheduler.cache.busy:
        scheduler.check_integrity()
    return requests


def greedy(
    runner: Runner,
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    new: int,
    *,
    cache: KvCoordinator | None = None,
    max_model_len: int = 512,
) -> list[list[int]]:
    """What ``served`` answers: the tokens after each prompt."""
    requests = served(runner, config, prompts, new, cache=cache, max_model_len=max_model_len)
    return [request.output for request in requests]

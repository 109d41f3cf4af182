"""The engine as an asyncio program sees it: submit token ids, receive text, while steps run on another thread.

It holds the tokenizer; scheduler and runner know token ids only. ``EngineFront`` satisfies ``ports.ServingEngine``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from energyopt.core.clock import Clock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import DeadlineError, EngineError, OverloadedError
from energyopt.core.records import RequestRecord, StepRecord

from .backlog import Turnover
from .batch import CacheShape, Runner, score_limit
from .detokenize import CONTEXT_TOKENS, Detokenizer
from .disagg.ports import Remote
from .disagg.prompt import lent_prompt
from .flights import as_pipeline
from .idle import idle_sleep_for
from .intake import Intake
from .kv.blocks import DEVICE
from .kv.configured import cache_for
from .kv.events import EventLog, watch
from .kv.ports import LowerTiers
from .output import Output
from .ports import EngineStats, Tokenizer
from .request import Request, SamplingParams
from .scheduler import Scheduler
from .service import EngineService, Hooks, ignore
from .speculative.assembly import drafts_for
from .speculative.depth import EnergyBetween
from .stream import Stream
from .structured.llg import LlGuides
from .structured.ports import Guide, GuideMaker, GuideSpec
from .structured.shelf import PATIENCE, GuideShelf
from .validate import check_request

_LONG_PROMPT = 32_768
"""Tokens from which a prompt is hashed off the event loop: at about 25 ns each, a millisecond."""


class EngineFront:
    """Serves requests of any number of event loops from one engine thread, which starts at once.

    ``on_step`` and ``on_request`` are called on that thread, before the outputs they belong to are delivered. If one
    of them raises, the engine dies as it does when the runner raises: every pending request gets EngineDeadError.
    ``energy`` tells the joules between two times, for decisions that weigh them; it must be quick.
    ``close`` closes the runner, ``tiers`` and ``remote`` too. Raises ConfigError for a cache configuration that does
    not fit the runner's groups of layers.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        clock: Clock,
        tiers: LowerTiers | None = None,
        remote: Remote | None = None,
        guides: GuideMaker | None = None,
        energy: EnergyBetween | None = None,
        on_step: Callable[[StepRecord], None] = ignore,
        on_request: Callable[[RequestRecord], None] = ignore,
    ) -> None:
        self._cache = runner.cache
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._clock = clock
        self._scores = score_limit(runner) > 0
        self._guides = GuideShelf(guides or LlGuides(tokenizer))
        turnover = Turnover()
        self._intake = Intake(config.max_num_queued_reqs, config.max_num_seqs, turnover.retry_after)
        self._coordinator = cache_for(config, runner.cache, tiers, remote)
        scheduler = Scheduler(
            config,
            self._coordinator,
            max_model_len=max_model_len,
            eos_ids=tokenizer.eos_ids,
            drafts=drafts_for(config.speculative_config, runner, energy),
            depth=as_pipeline(runner).depth,
            most_scored=score_limit(runner),
        )
        idle = idle_sleep_for(config.idle_sleep, runner, clock, lambda: self._coordinator.reset(DEVICE), energy)
        hooks = Hooks(on_step, on_request)
        self._service = EngineService(scheduler, runner, self._intake, turnover, clock, hooks, idle)
        self._thread = threading.Thread(target=self._service.serve, name="engine", daemon=True)
        self._thread.start()

    @property
    def cache(self) -> CacheShape:
        return self._cache

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def alive(self) -> bool:
        return self._intake.open

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, request_id: str, session: str | None = None
    ) -> AsyncIterator[Output]:
        """Admit a request and stream its outputs; see ``ports.ServingEngine.generate`` for what it raises."""
        check_request(
            prompt,
            params,
            max_model_len=self._max_model_len,
            vocab_size=self._tokenizer.vocab_size,
            cache=self._cache,
            scores=self._scores,
        )
        prompt = lent_prompt(prompt, params, self._cache)
        request = Request(request_id, tuple(prompt), params, self._clock.now(), session)
        context = request.prompt[-CONTEXT_TOKENS:]
        detokenizer = Detokenizer(
            self._tokenizer, context=context, stops=params.stop, skip_special=params.skip_special_tokens
        )
        stream = Stream(request, detokenizer)
        if len(prompt) > _LONG_PROMPT:
            await asyncio.to_thread(self._coordinator.name, request)
        else:
            self._coordinator.name(request)
        if params.guide is not None:
            request.guide = await self._guide(params.guide, request)
        self._intake.submit(stream)
        try:
            ended = False
            while not ended:
                output = await stream.next()
                ended = output.finish_reason is not None
                yield output
        finally:
            self._intake.abort(stream)

    async def _guide(self, spec: GuideSpec, request: Request) -> Guide:
        """What its answer is to follow. Raises DeadlineError where the request has no time left to wait for that."""
        limit = request.params.timeout
        try:
            return await self._guides.guide(spec, PATIENCE if limit is None else min(PATIENCE, limit))
        except OverloadedError as error:
            if limit is not None and self._clock.now() >= request.arrival + limit:
                message = f"The request had no token within its time limit of {limit:g} s: {error.message}"
                raise DeadlineError(message) from error
            raise

    def abort(self, request_id: str) -> None:
        """End a request within one step; an unknown id is ignored."""
        self._intake.abort_id(request_id)

    async def reset_prefix_cache(self, tier: str | None = None) -> int:
        """Forget cached prefixes; see ``ports.ServingEngine.reset_prefix_cache``."""
        return await asyncio.wrap_future(self._intake.ask(lambda: self._coordinator.reset(tier)))

    @property
    def block_naming(self) -> tuple[int, int]:
        """Tokens of a block of the first group of layers, and of the units that block hashes are chained over."""
        layout = self._coordinator.layout
        return layout.groups[0].block_tokens, layout.unit

    def watch_cache(self, log: EventLog | None) -> Future[int]:
        """Let the cache note in ``log`` what it holds and what becomes of it; None ends that. Any thread.

        Raises EngineDeadError.
        """
        return self._intake.ask(lambda: watch(self._coordinator, log))

    def stats(self) -> EngineStats:
        """Counters and gauges as of the last step, plus what was submitted since."""
        stats = self._service.stats
        return replace(stats, waiting=stats.waiting + self._intake.num_new, tiers=self._coordinator.counts())

    def close(self, timeout: float = 60.0) -> None:
        """Abort everything, end the thread, free the device. From a hook it only asks for that.

        Raises EngineError if the runner does not come back within ``timeout`` seconds; every stream ends all the same.
        """
        self._intake.close()
        self._guides.close()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            message = f"The engine did not end within {timeout:g} s: its runner still computes."
            self._service.end(message, None)
            raise EngineError(message)

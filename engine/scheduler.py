"""Continuous batching: which requests compute which tokens in the next step, and what a finished step means.

It never sees a tensor, a text or a clock. Two methods are its heart: ``schedule`` makes a batch, ``settle`` takes the
runner's result. All methods belong to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from energyopt.core.config import EngineConfig
from energyopt.core.errors import EngineError
from energyopt.core.records import FinishReason, Phase, StepShare
from energyopt.core.units import Seconds

from .batch import Batch, Sampled, ScheduledRequest, StepResult
from .counters import Counters
from .kv.coordinator import KvCoordinator
from .policy import AdmissionPolicy, FirstComeFirstServed
from .request import Request, Status
from .settled import NewToken, Settled
from .validate import check_fits, check_length
from .waiting import WaitingQueue

_NOTHING_CACHED: Mapping[str, int] = {}


class _Plan:
    """A batch in the making, and what is left of its token budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._decodes: list[ScheduledRequest] = []
        self._prefills: list[ScheduledRequest] = []

    @property
    def empty(self) -> bool:
        return not (self._decodes or self._prefills)

    def add(self, request: Request, count: int) -> None:
        """Also a request that comes back from preemption may be a decode: the cache can hold all but its last token."""
        start = request.num_computed
        item = ScheduledRequest(request, start, count, start + count == request.num_tokens)
        (self._decodes if _is_decode(item) else self._prefills).append(item)
        self.budget -= count

    def batch(self) -> Batch:
        return Batch((*self._decodes, *self._prefills))


def _is_decode(item: ScheduledRequest) -> bool:
    """``item.request.phase is DECODE`` as it was when the item was planned, and cheaper to ask."""
    return item.count == 1 and item.sample and bool(item.request.output)


class Scheduler:
    """Decodes first, then chunks of prompts, then admissions, within the budgets of ``config``.

    Running requests stand in order of admission. When blocks run out the youngest is preempted: it loses its blocks,
    keeps its tokens and waits at the front. The oldest is preempted by nobody, and ``add`` refuses what could not run
    alone, so something always finishes.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: KvCoordinator,
        *,
        max_model_len: int,
        eos_ids: frozenset[int] = frozenset(),
        policy: AdmissionPolicy | None = None,
    ) -> None:
        self.counters = Counters()
        self.cache = cache
        self._config = config
        self._max_model_len = max_model_len
        self._eos_ids = eos_ids
        self._waiting = WaitingQueue(policy or FirstComeFirstServed())
        self._running: list[Request] = []
        self._hits: dict[str, Mapping[str, int]] = {}

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def running(self) -> Iterator[Request]:
        """Requests that hold blocks, oldest first."""
        return iter(self._running)

    def add(self, request: Request) -> None:
        """Queue a request. Raises PromptTooLongError if the context or the whole KV pool is too small for it."""
        check_length(len(request.prompt), request.params.max_tokens, self._max_model_len)
        check_fits(len(request.prompt), request.params.max_tokens, self.cache.shape)
        self._waiting.push(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request now, wherever it stands; no effect if it has ended."""
        if request.status is Status.FINISHED:
            return
        if request.status is Status.RUNNING:
            self._running.remove(request)
            self.cache.free(request)
        else:
            self._waiting.discard(request)
        request.status = Status.FINISHED
        request.finish_reason = reason

    def schedule(self) -> Batch | None:
        """The next step's batch; None only if there is no request."""
        plan = _Plan(self._config.max_num_batched_tokens)
        prefills = self._plan_decodes(plan)
        self._plan_prefills(plan, prefills)
        self._plan_admissions(plan)
        if plan.empty:
            if self.has_work:
                raise EngineError("The scheduler has requests but found nothing to compute.")
            return None
        return plan.batch()

    def settle(self, batch: Batch, result: StepResult) -> Settled:
        """Take over what a step computed: tokens, cached blocks, requests that ended.

        Raises EngineError if the result does not answer the batch item by item.
        """
        if len(result.sampled) != len(batch.items):
            raise EngineError(f"The runner answered {len(result.sampled)} of {len(batch.items)} scheduled requests.")
        tokens: list[NewToken] = []
        shares: list[StepShare] = []
        for item, sampled in zip(batch.items, result.sampled, strict=True):
            request = item.request
            cached = self._hits.pop(request.id, _NOTHING_CACHED) if self._hits else _NOTHING_CACHED
            phase = Phase.DECODE if _is_decode(item) else Phase.PREFILL
            shares.append(StepShare(request.id, phase, item.count, item.start, cached))
            self.cache.commit(request, item.start + item.count)
            if (sampled is not None) != item.sample:
                raise EngineError(f"The runner sampled for request {request.id!r} against the batch.")
            if sampled is not None:
                self._append(request, sampled, result.end)
                tokens.append(NewToken(request, sampled))
        self.counters.stepped(result.end - result.start, len(tokens))
        return Settled(tuple(tokens), tuple(shares))

    def check_integrity(self) -> None:
        """Raise EngineError if a block is lost, or held by somebody who is not running. O(pool)."""
        self.cache.check_integrity(self._running)

    def _plan_decodes(self, plan: _Plan) -> list[Request]:
        """One token for each decoding request, oldest first; returns the running requests that still prefill."""
        prefills: list[Request] = []
        for request in tuple(self._running):
            if request.status is not Status.RUNNING:
                continue
            if request.phase is Phase.PREFILL:
                prefills.append(request)
            elif self._make_room(request):
                plan.add(request, 1)
        return prefills

    def _make_room(self, request: Request) -> bool:
        """A place for one more token, taken from the youngest if need be; False if that is the request itself."""
        while not self.cache.grow(request, request.num_computed + 1):
            if self._preempt_youngest() is request:
                return False
        return True

    def _plan_prefills(self, plan: _Plan, prefills: list[Request]) -> None:
        """The next chunk of each prompt that was begun, as far as tokens and blocks go.

        A chunk shrinks to the blocks that are idle; others are preempted for it only if the step had no work at all.
        """
        for request in prefills:
            while plan.empty and request.status is Status.RUNNING and self.cache.room(request) == 0:
                self._preempt_youngest()
            if request.status is not Status.RUNNING:
                continue
            count = min(request.remaining, plan.budget, self.cache.room(request))
            if count:
                self.cache.grow(request, request.num_computed + count)
                plan.add(request, count)

    def _plan_admissions(self, plan: _Plan) -> None:
        """Admit in the policy's order while there are tokens, seats and blocks; nobody overtakes one that must wait.

        One idle block per running request is left alone, so that an admission does not force a preemption at once.
        """
        while plan.budget and self._waiting and len(self._running) < self._config.max_num_seqs:
            request = self._waiting.peek()
            hit = self.cache.lookup(request)
            if not self.cache.can_admit(request, hit, spare=len(self._running)):
                return
            self._waiting.pop()
            self.cache.admit(request, hit)
            if request.num_preemptions == 0:
                request.cached_tokens, request.cached_by_tier = hit.tokens, dict(hit.by_tier)
                self._hits[request.id] = request.cached_by_tier
                self.counters.admitted(len(request.prompt), hit.by_tier)
            request.status = Status.RUNNING
            self._running.append(request)
            count = min(request.remaining, plan.budget)
            self.cache.grow(request, request.num_computed + count)
            plan.add(request, count)

    def _preempt_youngest(self) -> Request:
        """Send the youngest running request back to the front of the queue, without its blocks."""
        if len(self._running) == 1:
            raise EngineError(f"Request {self._running[0].id!r} runs alone and the KV pool is still too small for it.")
        victim = self._running.pop()
        self.cache.free(victim)
        victim.status = Status.PREEMPTED
        victim.num_preemptions += 1
        self._waiting.push(victim)
        self.counters.preemptions += 1
        return victim

    def _append(self, request: Request, sampled: Sampled, at: Seconds) -> None:
        """Add a sampled token and end the request if the token ends it."""
        request.output.append(sampled.token)
        request.token_times.append(at)
        params = request.params
        if (sampled.token in self._eos_ids and not params.ignore_eos) or sampled.token in params.stop_token_ids:
            self.finish(request, FinishReason.STOP)
        elif len(request.output) >= params.max_tokens:  # at the latest at the end of the context: see ``add``
            self.finish(request, FinishReason.LENGTH)

"""Continuous batching: which requests compute which tokens in the next step, and what a finished step means.

It never sees a tensor, a text or a clock. Two methods are its heart: ``schedule`` makes a batch, ``settle`` takes the
runner's result. All methods belong to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from energyopt.core.config import EngineConfig
from energyopt.core.errors import EngineError
from energyopt.core.records import FinishReason

from .batch import Batch, StepResult
from .counters import Counters
from .ending import Endings
from .flights import Flights
from .kv.coordinator import Admission, KvCoordinator
from .kv.prefix import NO_HIT, PrefixHit
from .plan import Plan
from .policy import AdmissionPolicy, PriorityFirst
from .request import Request, Status
from .settled import Settled
from .settlement import Settlement
from .speculative.drafts import Drafts
from .validate import check_fits, check_length
from .waiting import WaitingQueue

_MOST_ASKING = 16
"""Requests that may wait for a tier's answer at once; each is asked for again in every step."""


class Scheduler:
    """Decodes first, then chunks of prompts, then admissions, within the budgets of ``config``.

    Running requests stand in order of admission. When blocks run out the youngest is preempted: it loses its blocks,
    keeps its tokens and waits at the front. The oldest is preempted by nobody, and ``add`` refuses what could not run
    alone, so something always finishes. A request whose prefix comes from a lower tier holds a seat and its blocks
    until the copy ends; others go on and may overtake it. If its load fails, it waits again and computes.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: KvCoordinator,
        *,
        max_model_len: int,
        eos_ids: frozenset[int] = frozenset(),
        policy: AdmissionPolicy | None = None,
        drafts: Drafts | None = None,
        depth: int = 1,
        most_scored: int = 0,
    ) -> None:
        """``most_scored`` prompt tokens may be scored in one batch."""
        self.counters = Counters()
        self.endings = Endings(eos_ids)
        self.flights = Flights(depth)
        self.cache = cache
        self._config = config
        self._max_model_len = max_model_len
        self._most_scored = most_scored
        self._waiting = WaitingQueue(policy or PriorityFirst())
        self._running: list[Request] = []
        self._loading: dict[str, tuple[Request, PrefixHit]] = {}
        self._asking: list[Request] = []
        self.drafts = drafts
        self._settlement = Settlement(cache, self.endings, self.finish, drafts)
        self.lost: list[Request] = []
        """Requests that another engine did not hand over whole, where the policy says to end them then."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that do not run yet, also those whose blocks are being loaded."""
        return len(self._waiting) + len(self._loading) + len(self._asking)

    @property
    def num_loading(self) -> int:
        return len(self._loading)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self.num_waiting or self.flights)

    def running(self) -> Iterator[Request]:
        """Requests that compute, oldest first."""
        return iter(self._running)

    def add(self, request: Request) -> None:
        """Queue a request. Raises PromptTooLongError if the context or the whole KV pool is too small for it."""
        check_length(len(request.prompt), request.params.max_tokens, self._max_model_len)
        check_fits(len(request.prompt), request.params.max_tokens, self.cache.shape)
        self._waiting.push(request)
        self.cache.handovers.accept(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request now, wherever it stands; no effect if it has ended."""
        if request.status is Status.FINISHED:
            return
        if request.status is Status.RUNNING:
            self._running.remove(request)
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                self.cache.handovers.lend(request)
            self.cache.free(request)
        elif request.status is Status.LOADING:
            del self._loading[request.id]
            self.cache.free(request)
        elif request in self._asking:
            self._asking.remove(request)
        else:
            self._waiting.discard(request)
        self.cache.handovers.used(request)
        if self.drafts is not None:
            self.drafts.forget(request)
        request.status = Status.FINISHED
        request.finish_reason = reason

    def schedule(self) -> Batch | None:
        """The next step's batch; None if no request is at hand: they wait for a lower tier, or a batch has them."""
        self._take_landed()
        plan = Plan(self._config.max_num_batched_tokens, self._most_scored)
        prefills = self._plan_decodes(plan)
        if self.drafts is not None:
            self.drafts.add_to(plan, self.cache)
        self._plan_prefills(plan, prefills)
        self._plan_admissions(plan)
        if plan.empty:
            if self.has_work and not (self.flights or self.cache.busy or self._asking or self.lost):
                raise EngineError("The scheduler has requests but found nothing to compute.")
            return None
        return self.flights.depart(plan.batch(self.cache.take_copies()))

    def settle(self, batch: Batch, result: StepResult) -> Settled:
        """Take over what a step computed: tokens, cached blocks, requests that ended.

        Raises EngineError if the result does not answer the batch item by item.
        """
        self.flights.land(batch)
        settled = self._settlement.settle(batch, result)
        self.cache.end_step()
        self.counters.stepped(result.end - result.start, settled.num_tokens)
        return settled

    def take_back(self, request: Request, tokens: int) -> None:
        """Drop the newest tokens of a request that ended before them: at a stop string among accepted guesses."""
        if tokens:
            del request.output[-tokens:], request.token_times[-tokens:]
            self.counters.output_tokens -= tokens

    def check_integrity(self) -> None:
        """Raise EngineError if a block is lost, or held by somebody who neither runs nor loads. O(pool)."""
        self.cache.check_integrity([*self._running, *(request for request, _ in self._loading.values())])

    def _take_landed(self) -> None:
        """Requests whose load ended: they run on from what arrived, or wait once more and compute."""
        landed = self.cache.poll()
        self.lost += landed.lost
        for request in landed.loaded:
            _, hit = self._loading.pop(request.id)
            self.cache.begin(request, hit)
            self._begin(request, hit)
        for request in landed.failed:
            self._back_to_queue(request)

    def _plan_decodes(self, plan: Plan) -> list[Request]:
        """One token for each decoding request, oldest first; returns the running requests that still prefill."""
        prefills: list[Request] = []
        flying, least = self.flights.requests, plan.budget - self.flights.share(len(self._running))
        for request in tuple(self._running):
            if request.status is not Status.RUNNING or request in flying:
                continue
            # ``request.phase`` and a call saved: this loop runs once per request and step.
            covered = len(request.prompt) + len(request.output)
            if request.num_computed + 1 != covered or not request.output:
                prefills.append(request)
            elif plan.budget > least and (covered <= request.kv.covered or self._make_room(request)):
                plan.decode(request)
        return prefills

    def _make_room(self, request: Request) -> bool:
        """A place for one more token, taken from the youngest if need be; False if that is the request itself."""
        while not self.cache.grow(request, request.num_computed + 1):
            if self._make_way() in (request, None):
                return False
        return True

    def _plan_prefills(self, plan: Plan, prefills: list[Request]) -> None:
        """The next chunk of each prompt that was begun, as far as tokens and blocks go.

        A chunk shrinks to the blocks that are idle; others are preempted for it only if the step had no work at all.
        """
        for request in prefills:
            while plan.empty and request.status is Status.RUNNING and self.cache.room(request, 1) == 0:
                if self._make_way() is None:
                    break
            if request.status is Status.RUNNING:
                self._plan_chunk(plan, request)

    def _plan_chunk(self, plan: Plan, request: Request) -> None:
        """As much of a request as the budget, the blocks, and the states that are worth keeping allow."""
        wanted = plan.most(request)
        wanted = self.cache.chunk_end(request, request.num_computed + wanted) - request.num_computed
        count = self.cache.room(request, wanted)
        if count:
            self.cache.grow(request, request.num_computed + count)
            plan.add(request, count)

    def _plan_admissions(self, plan: Plan) -> None:
        """Admit in the policy's order while there are tokens, seats and blocks.

        Nobody overtakes one that must wait for blocks, but who waits for an answer or a copy of a lower tier is passed
        by. One idle block per running request is left alone, so that an admission does not force a preemption at once.
        """
        for request in self._asking:
            self._waiting.push(request)
        self._asking = []
        while plan.budget and self._waiting and len(self._running) + len(self._loading) < self._config.max_num_seqs:
            request = self._waiting.peek()
            if request.unscored and not plan.scores:
                return
            # What is cached has no logits, so a prompt that is scored is computed whole.
            hit = NO_HIT if request.unscored else self.cache.lookup(request)
            if hit.later:
                self._asking.append(self._waiting.pop())
                if len(self._asking) >= _MOST_ASKING:
                    return
                continue
            if not self.cache.can_admit(request, hit, spare=len(self._running)):
                if self._running or self._loading or self.cache.busy:
                    return
                hit = NO_HIT  # alone, and the prefix stands in its own way: whoever computes all of it fits
            admission = self.cache.admit(request, hit)
            if admission is Admission.VANISHED:
                continue
            self._waiting.pop()
            if admission is Admission.LOADING:
                request.status = Status.LOADING
                self._loading[request.id] = (request, hit)
            else:
                self._begin(request, hit)
                self._plan_chunk(plan, request)

    def _begin(self, request: Request, hit: PrefixHit) -> None:
        """A request takes its place among the running ones; what it hit is counted at its first admission."""
        if request.num_preemptions == 0:
            request.cached_tokens, request.cached_by_tier = hit.tokens, dict(hit.by_tier)
            self._settlement.hits[request.id] = request.cached_by_tier
            self.counters.admitted(len(request.prompt), hit.by_tier)
        request.status = Status.RUNNING
        self._running.append(request)

    def _make_way(self) -> Request | None:
        """Take the blocks of the youngest request that no batch computes; None if only the oldest is left.

        Then copies hold the rest: a load is called off, or, if there is none, stores or batches end soon.
        """
        for victim in reversed(self._running[1:]):
            if victim not in self.flights.requests:
                return self._preempt(victim)
        if self._loading:
            request, _ = next(reversed(self._loading.values()))
            self._back_to_queue(request)
        elif not (self.cache.busy or self.flights):
            raise EngineError(f"Request {self._running[0].id!r} runs alone and the KV pool is still too small for it.")
        return None

    def _back_to_queue(self, request: Request) -> None:
        """A request whose load failed or was called off waits again, and will not ask the tiers again."""
        del self._loading[request.id]
        self.cache.free(request)
        request.kv.tiers = False
        request.status = Status.PREEMPTED if request.num_preemptions else Status.WAITING
        self._waiting.push(request)

    def _preempt(self, victim: Request) -> Request:
        """Send a running request back to the front of the queue, without its blocks."""
        self._running.remove(victim)
        self.cache.free(victim)
        victim.status = Status.PREEMPTED
        victim.num_preemptions += 1
        self._waiting.push(victim)
        self.counters.preemptions += 1
        return victim

"""The running account: who used how much so far, kept up to date as steps end and curves settle."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import RLock

from energyopt.core.errors import SensorError
from energyopt.core.records import StepRecord
from energyopt.core.results import EnergySplit, EnergyTotal, Source
from energyopt.core.units import Joules, Seconds

from .attribute import attribute, runs_on
from .attribution_report import AttributionReport, attribution_report
from .book import Book
from .curve import EnergyCurve
from .idle import IdlePolicy, SeparateIdle
from .owners import MAX_REQUESTS, Owner, OwnerBook
from .timeline import NANOJOULES
from .weigh import ComputeWeight, Weigh

MAX_PENDING = 50_000
"""Steps kept while a sensor is silent; older ones are dropped and their energy counts as idle."""
KEPT = 0.75
"""Share of MAX_REQUESTS that is kept when there are more, so that the sorting is rare."""
SETTLE_EVERY = 256
"""Steps between settlements when nobody asks."""
MAX_SESSIONS = 4_096
"""Sessions whose energy is remembered, newest use last."""
IDLE_AFTER = Seconds(30.0)
"""Time without a step is settled as idle this long after it passed: no step is expected to last longer."""


@dataclass(slots=True)
class _Usage:
    """One request on one sensor: nanojoules settled, and the time its steps span."""

    nanojoules: int = 0
    first: float = math.inf
    last: float = -math.inf


@dataclass(slots=True)
class _Account:
    """One sensor: what is settled until ``until``, where the curve stood at ``energy``; and the steps that wait."""

    curve: EnergyCurve
    until: Seconds | None = None
    energy: int = 0
    pending: deque[StepRecord] = field(default_factory=deque)
    book: Book = field(default_factory=Book)
    requests: dict[str, _Usage] = field(default_factory=dict)


class Ledger:
    """Attributes the energy of all sensors to requests, phases and owners, incrementally and in bounded memory.

    ``record`` takes each step once, when it ended. A step that is recorded after time of its own was settled (two
    engines on one device) keeps only the part that is not; ``late`` counts them, and conservation holds regardless.
    ``tenants`` are the labels that owners may have; ``idle`` says whose the energy of idle time is. Thread-safe.
    """

    def __init__(
        self,
        curves: Sequence[EnergyCurve],
        weigh: Weigh | None = None,
        *,
        idle: IdlePolicy | None = None,
        tenants: Iterable[str] = (),
    ) -> None:
        self._accounts = [_Account(curve) for curve in curves]
        self.weigh = weigh or ComputeWeight()
        self.idle: IdlePolicy = idle or SeparateIdle()
        self._owners = OwnerBook(tenants)
        self._sessions: OrderedDict[Owner, int] = OrderedDict()
        self._lock = RLock()
        self._recorded = 0
        self.late = 0
        self.dropped = 0

    def note(self, request_id: str, *, tenant: str | None = None, session: str | None = None) -> None:
        """Say whose a request is, before its first step. A tenant that is not known is OTHER; none is ANONYMOUS."""
        with self._lock:
            self._owners.note(request_id, tenant, session)

    def owner(self, request_id: str) -> Owner:
        """Whose a request is, as noted."""
        with self._lock:
            return self._owners.of(request_id)

    def record(self, step: StepRecord) -> None:
        """Take a finished step."""
        with self._lock:
            self.weigh.observe(step)
            for account in self._accounts:
                if not runs_on(step, account.curve.sensor):
                    continue
                if account.until is not None and step.start < account.until:
                    self.late += 1
                account.pending.append(step)
                self._span(account, step)
                if len(account.pending) > MAX_PENDING:
                    account.pending.popleft()
                    self.dropped += 1
            self._recorded += 1
            if self._recorded % SETTLE_EVERY == 0:
                self.settle()

    def settle(self) -> None:
        """Attribute what the curves cover by now."""
        with self._lock:
            for account in self._accounts:
                self._settle(account)

    @property
    def measured(self) -> bool:
        """True if there is a sensor at all."""
        return bool(self._accounts)

    def split(self) -> EnergySplit | None:
        """Joules by purpose since the beginning, over all sensors, as far as settled; None without sensors."""
        with self._lock:
            if not self._accounts:
                return None
            return self.book().split().split()

    def book(self) -> Book:
        """A copy of what is settled so far, over all sensors."""
        with self._lock:
            total = Book()
            for account in self._accounts:
                total.add(account.book)
            return total

    def report(self, tenant: str | None = None, *, sessions: int = 100) -> AttributionReport:
        """Everything settled so far, or one tenant's part of it; of its sessions the newest."""
        with self._lock:
            self.settle()
            newest = [entry for entry in reversed(self._sessions.items()) if tenant in (None, entry[0].tenant)]
            found = {source for account in self._accounts for source in account.curve.totals}
            return attribution_report(
                self.book(),
                newest[:sessions],
                idle_policy=self.idle.name,
                sources=[source for source in Source if source in found],
                fit=self.weigh.report(),
                tenant=tenant,
            )

    def session_energy(self, tenant: str, session: str) -> Joules | None:
        """Joules settled for one tenant's session over all its requests; None if it is not remembered."""
        with self._lock:
            amount = self._sessions.get(Owner(tenant, session))
            return None if amount is None else Joules(amount / NANOJOULES)

    def settled(self) -> int:
        """Nanojoules attributed so far, over all sensors."""
        with self._lock:
            return sum(account.book.total for account in self._accounts)

    def request_energy(self, request_id: str) -> EnergyTotal | None:
        """Joules of one request so far, with the part that is not settled yet told by the last power.

        None if no sensor saw it or one that did cannot tell. The error is the sensor's over the time the request ran,
        in proportion to the request's part of it.
        """
        with self._lock:
            usages = []
            for account in self._accounts:
                if request_id not in account.requests:
                    continue
                try:
                    usages.append(self._usage(account, request_id))
                except SensorError:
                    return None
            return _sum(usages)

    def _span(self, account: _Account, step: StepRecord) -> None:
        """Note that the step's requests ran; where they are too many, forget those that ran longest ago."""
        requests, start, end = account.requests, step.start, step.end
        for share in step.shares:
            usage = requests.get(share.request_id)
            if usage is None:
                requests[share.request_id] = _Usage(first=start, last=end)
                continue
            if start < usage.first:
                usage.first = start
            if end > usage.last:
                usage.last = end
        if len(requests) > MAX_REQUESTS:
            order = sorted(requests, key=lambda name: requests[name].last, reverse=True)
            account.requests = {name: requests[name] for name in order[: max(1, round(KEPT * MAX_REQUESTS))]}

    def _settle(self, account: _Account) -> None:
        span = account.curve.coverage
        if span is None:
            return
        start = span[0] if account.until is None else account.until
        if start < span[0]:
            # Nobody asked for longer than the curve remembers: what passed is known in sum only.
            account.book.rest(account.curve.nanojoules(span[0]) - account.energy, self.idle)
            account.until = start = span[0]
            account.energy = account.curve.nanojoules(span[0])
        # What a running step uses is known when it ends: do not call it idle before.
        newest = account.pending[-1].end if account.pending else -math.inf
        end = Seconds(min(span[1], max(newest, span[1] - IDLE_AFTER)))
        if end <= start:
            return
        result = attribute(account.curve.nanojoules, list(account.pending), start, end, self.weigh)
        account.book.charge(result, self.weigh.method, self._owners.of, self.idle)
        for (request_id, _), amount in result.requests.items():
            if request_id in account.requests:
                account.requests[request_id].nanojoules += amount
            self._credit(self._owners.of(request_id), amount)
        account.until, account.energy = end, account.curve.nanojoules(end)
        account.pending = deque(step for step in account.pending if step.end > end)

    def _credit(self, owner: Owner, amount: int) -> None:
        if owner.session is None:
            return
        self._sessions[owner] = self._sessions.get(owner, 0) + amount
        self._sessions.move_to_end(owner)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def _usage(self, account: _Account, request_id: str) -> EnergyTotal:
        usage, curve = account.requests[request_id], account.curve
        span = curve.coverage
        if span is None:
            raise SensorError(f"{curve.sensor.device} has no energy yet.")
        amount = usage.nanojoules
        start = Seconds(max(span[0], account.until if account.until is not None else span[0]))
        waiting = [step for step in account.pending if step.end > start]
        if waiting:
            end = Seconds(max(step.end for step in waiting))
            rest = attribute(curve.provisional_nanojoules, waiting, start, end, self.weigh)
            amount += sum(part for (of, _), part in rest.requests.items() if of == request_id)
        first, last = Seconds(max(span[0], usage.first)), Seconds(usage.last)
        whole = curve.provisional(first, last)
        joules = amount / NANOJOULES
        share = min(1.0, joules / whole.joules) if whole.joules > 0 else 1.0
        sources = curve.sources(first, last) or (whole.source,)
        return EnergyTotal(joules=Joules(joules), error=Joules(whole.error * share), sources=sources)


def _sum(usages: Sequence[EnergyTotal]) -> EnergyTotal | None:
    """Over disjoint sensors; errors are added, as in ``total_energy``."""
    if not usages:
        return None
    return EnergyTotal(
        joules=Joules(math.fsum(usage.joules for usage in usages)),
        error=Joules(math.fsum(usage.error for usage in usages)),
        sources=tuple(source for source in Source if any(source in usage.sources for usage in usages)),
    )

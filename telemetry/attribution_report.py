"""The account as one document: who used how much since the start, by which rules, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from energyopt.core.records import Phase
from energyopt.core.results import Result, Source
from energyopt.core.units import Joules

from .book import Book, Use
from .owners import NOBODY, Owner
from .timeline import NANOJOULES
from .weigh import FitReport


class TenantEnergy(Result):
    """Joules of one tenant; ``idle`` is its part under the idle policy."""

    tenant: str
    prefill: Joules
    decode: Joules
    idle: Joules


class SessionEnergy(Result):
    """Joules of one tenant's session over all its requests."""

    tenant: str
    session: str
    joules: Joules


class CostFit(Result):
    """The fitted cost model: seconds by term, and the mean error of its predictions as a share of the time."""

    used: bool
    steps: int
    error: float | None
    seconds: dict[str, float]


class AttributionReport(Result):
    """All joules settled since the start. ``total`` is what the sensors said; the parts sum to it.

    A report on one tenant holds that tenant alone, and ``total`` and ``overhead`` are None. ``tiers`` divides the
    joules of requests by computing and by the cache tier that tokens came from. ``sessions`` are the newest.
    """

    total: Joules | None
    overhead: Joules | None
    tenants: tuple[TenantEnergy, ...]
    sessions: tuple[SessionEnergy, ...]
    tiers: dict[str, Joules]
    methods: dict[str, Joules]
    idle_policy: str
    sources: tuple[Source, ...]
    fit: CostFit | None


def attribution_report(
    book: Book,
    sessions: Sequence[tuple[Owner, int]],
    *,
    idle_policy: str,
    sources: Sequence[Source],
    fit: FitReport | None,
    tenant: str | None = None,
) -> AttributionReport:
    """The report on everybody, or on ``tenant`` alone: one tenant must not learn what others use."""
    used = {use: amount for use, amount in book.used.items() if tenant in (None, use.tenant)}
    names = {use.tenant for use in used} | {name for name in book.idle if name != NOBODY and tenant in (None, name)}
    nobody = book.idle[NOBODY]
    tenants = [
        TenantEnergy(
            tenant=name,
            prefill=_joules(_sum(used, name, Phase.PREFILL)),
            decode=_joules(_sum(used, name, Phase.DECODE)),
            idle=_joules(book.idle[name]),
        )
        for name in sorted(names)
    ]
    if tenant is None:
        tenants.append(TenantEnergy(tenant=NOBODY, prefill=_joules(0), decode=_joules(0), idle=_joules(nobody)))
    methods: dict[str, int] = {}
    for use, amount in used.items():
        methods[use.method] = methods.get(use.method, 0) + amount
    return AttributionReport(
        total=_joules(book.total) if tenant is None else None,
        overhead=_joules(book.overhead) if tenant is None else None,
        tenants=tuple(tenants),
        sessions=tuple(
            SessionEnergy(tenant=owner.tenant, session=owner.session, joules=_joules(amount))
            for owner, amount in sessions
            if owner.session is not None and tenant in (None, owner.tenant)
        ),
        tiers={tier: _joules(amount) for tier, amount in book.tiers.items()} if tenant is None else {},
        methods={method: _joules(amount) for method, amount in methods.items()},
        idle_policy=idle_policy,
        sources=tuple(sources),
        fit=None if fit is None else CostFit(used=fit.trusted, steps=fit.steps, error=fit.error, seconds=fit.seconds),
    )


def _sum(used: Mapping[Use, int], tenant: str, phase: Phase) -> int:
    return sum(amount for use, amount in used.items() if (use.tenant, use.phase) == (tenant, phase))


def _joules(nanojoules: int) -> Joules:
    return Joules(nanojoules / NANOJOULES)

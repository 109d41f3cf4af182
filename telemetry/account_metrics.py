"""The account as metric families: joules by owner, phase, rule and cache tier, and how well steps are told."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .account_catalog import ACCOUNT
from .families import family
from .ledger import Ledger
from .owners import NOBODY
from .timeline import NANOJOULES

OVERHEAD_METHOD = "separate"


class AccountCollector(Collector):
    """Series of the energy attributed so far; nothing without sensors."""

    def __init__(self, ledger: Ledger, model: str) -> None:
        self._ledger = ledger
        self._model = model

    def describe(self) -> Iterator[Family]:
        """Nothing: registering must not settle the account."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        self._ledger.settle()
        if not self._ledger.measured:
            return
        book, model = self._ledger.book(), self._model
        amounts = {(model, use.tenant, use.phase.value, use.method): part for use, part in book.used.items()}
        idle = book.idle or {NOBODY: 0}
        amounts |= {(model, tenant, "idle", self._ledger.idle.name): part for tenant, part in idle.items()}
        amounts[model, NOBODY, "overhead", OVERHEAD_METHOD] = book.overhead
        yield family(ACCOUNT.attributed, {labels: part / NANOJOULES for labels, part in amounts.items()})
        yield family(ACCOUNT.tiers, {(model, tier): part / NANOJOULES for tier, part in book.tiers.items()})
        report = self._ledger.weigh.report()
        if report is None:
            return
        yield family(ACCOUNT.fit_trusted, {(model,): float(report.trusted)})
        yield family(ACCOUNT.fit_error, {} if report.error is None else {(model,): report.error})

"""What computing and loading cost on this machine, learned from steps, loads and sensors; and what hits saved.

It knows records and sensors' answers, never keys or tensors. Joules of a load are taken from loads during which no
step ran, joules of a prefill from steps that did nothing else: both are what the devices draw while a request is made
ready, their idle power included. What a hit saved is a counterfactual and therefore an estimate, whatever the sensor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from energyopt.core.records import Phase, StepRecord
from energyopt.core.results import EnergyTotal

from .linear import LinearCost
from .ports import LoadRecord

EnergyBetween = Callable[[float, float], EnergyTotal | None]
"""Joules of all devices from one time to another; None while, or where, the sensors cannot tell."""

_LEAST_TOKENS = 16
"""Steps of fewer prefill tokens say more about overhead than about prefill."""

_REMEMBERED_STEPS = 64
_UNSETTLED = 64
_SETTLE_PATIENCE = 30.0
"""Seconds after which a window that the sensors do not cover is given up."""


@dataclass(frozen=True, slots=True)
class EconomyCounts:
    """Joules since start, as far as they are known. ``spent`` by tier and source; ``saved`` by tier, estimated."""

    saved: Mapping[str, float]
    spent: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class _Window:
    """A time that had one purpose: a load from ``tier`` of ``amount`` bytes, or a prefill of ``amount`` tokens."""

    start: float
    end: float
    tier: str | None
    amount: float


class Economy:
    """``on_step`` and ``on_load`` teach it, on the step loop's thread; ``counts`` may be asked from any."""

    def __init__(self, energy: EnergyBetween | None = None) -> None:
        self.prefill_seconds = LinearCost()
        self.prefill_joules = LinearCost()
        self.load_seconds: dict[str, LinearCost] = {}
        self.load_joules: dict[str, LinearCost] = {}
        self._energy = energy
        self._steps: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED_STEPS)
        self._windows: deque[_Window] = deque(maxlen=_UNSETTLED)
        self._saved: dict[str, float] = {}
        self._spent: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    @property
    def measures(self) -> bool:
        """Whether anybody tells it joules."""
        return self._energy is not None

    def on_step(self, step: StepRecord) -> None:
        """A step ended."""
        self._steps.append((step.start, step.end))
        tokens = sum(share.computed_tokens for share in step.shares)
        if tokens >= _LEAST_TOKENS and all(share.phase is Phase.PREFILL for share in step.shares):
            self.prefill_seconds.observe(tokens, step.end - step.start)
            self._windows.append(_Window(step.start, step.end, None, tokens))
        for share in step.shares:
            for tier, cached in share.cached_tokens.items():
                self._save(tier, cached)
        self._settle(step.end)

    def on_load(self, load: LoadRecord) -> None:
        """A load ended. One that mixed tiers, failed or ran beside a step teaches nothing about its joules."""
        if len(load.blocks) == 1 and load.good:
            (tier,) = load.blocks
            self.load_seconds.setdefault(tier, LinearCost()).observe(load.size, load.end - load.start)
            if not any(start < load.end and end > load.start for start, end in self._steps):
                self._windows.append(_Window(load.start, load.end, tier, load.size))
            else:
                self._spend(tier, load.size)
        self._settle(load.end)

    def counts(self) -> EconomyCounts:
        with self._lock:
            return EconomyCounts(dict(self._saved), dict(self._spent))

    def _save(self, tier: str, tokens: int) -> None:
        each = self.prefill_joules.slope
        if each is not None:
            with self._lock:
                self._saved[tier] = self._saved.get(tier, 0.0) + each * tokens

    def _spend(self, tier: str, size: int) -> None:
        """A load that no sensor can tell from the step beside it: what such a load took when it was alone."""
        alone = self.load_joules.get(tier)
        joules = None if alone is None else alone.of(size)
        if joules is not None:
            self._add_spent(tier, "estimated", joules)

    def _settle(self, now: float) -> None:
        """Ask the sensors about windows that they did not cover before."""
        while self._energy is not None and self._windows:
            window = self._windows[0]
            total = self._energy(window.start, window.end)
            if total is None and now - window.end < _SETTLE_PATIENCE:
                return
            self._windows.popleft()
            if total is not None:
                self._learn(window, total)

    def _learn(self, window: _Window, total: EnergyTotal) -> None:
        if window.tier is None:
            self.prefill_joules.observe(window.amount, total.joules)
            return
        self.load_joules.setdefault(window.tier, LinearCost()).observe(window.amount, total.joules)
        self._add_spent(window.tier, total.label, total.joules)

    def _add_spent(self, tier: str, source: str, joules: float) -> None:
        with self._lock:
            self._spent[tier, source] = self._spent.get((tier, source), 0.0) + joules

"""How many engines should prefill: decided from measured rates, by the formula that also prices plans. No I/O.

An engine that is busy a share ``u`` of its time and finishes ``x`` requests per second would finish ``x / u`` if it
were always busy: that is a pool's rate (``energyopt.core.rate_match``). Of the splits that carry the demand, the one of
fewest watts is wanted, idle watts of both pools included; if none carries it, the one that carries most.
"""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.rate_match import PoolRate, flow_of

LEAST_BUSY = 0.02
"""Share below which a rate is a quotient of two small numbers, and nothing is decided."""


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """One pool over a window: ``engines``, their finished requests per second, and the mean share they were busy.

    ``waiting`` says that requests queued: the demand is then more than what was carried. ``busy_watts`` and
    ``idle_watts`` are per engine; None if they were not measured, and then watts decide nothing.
    """

    engines: int
    flow: float
    busy: float
    waiting: bool = False
    busy_watts: float | None = None
    idle_watts: float | None = None

    @property
    def rate(self) -> PoolRate | None:
        """What one engine of the pool can do, as far as the window shows it."""
        if self.busy < LEAST_BUSY or self.flow <= 0 or not self.engines:
            return None
        watts = (self.busy_watts, self.idle_watts) if self.measured else (0.0, 0.0)
        rate = self.flow / (self.engines * min(1.0, self.busy))
        return PoolRate(rate, 1, watts[0] or 0.0, watts[1] or 0.0)

    @property
    def measured(self) -> bool:
        return self.busy_watts is not None and self.idle_watts is not None


@dataclass(frozen=True, slots=True)
class Rules:
    """When a wish becomes a change.

    ``gain`` is what a change must bring, in requests per second or in watts. It must be wanted in ``windows`` windows
    in a row, and after a change ``rest`` windows pass: what was measured while roles changed says nothing. ``headroom``
    is how much more than the demand a split must be able to carry.
    """

    gain: float = 0.15
    windows: int = 3
    rest: int = 3
    headroom: float = 1.2


class Rebalancer:
    """Called once a window; remembers how long it has wanted what."""

    def __init__(self, rules: Rules = Rules()) -> None:
        self._rules = rules
        self._wanted = 0
        self._times = 0
        self._rest = 0

    def decide(self, prefill: PoolLoad, decode: PoolLoad) -> int | None:
        """The prefill pool's new size, one more or one fewer than now; None to leave it."""
        if self._rest:
            self._rest -= 1
            return None
        wanted = wanted_split(prefill, decode, self._rules)
        self._times = self._times + 1 if wanted is not None and wanted == self._wanted else 1
        self._wanted = wanted or 0
        if wanted is None or wanted == prefill.engines or self._times < self._rules.windows:
            return None
        self._times, self._rest = 0, self._rules.rest
        return prefill.engines + (1 if wanted > prefill.engines else -1)


def wanted_split(prefill: PoolLoad, decode: PoolLoad, rules: Rules) -> int | None:
    """The prefill pool's best size for what was measured, the present one unless another gains enough.

    None while a rate is not known.
    """
    first, second, total = prefill.rate, decode.rate, prefill.engines + decode.engines
    if first is None or second is None or total < 3:
        return None
    now = prefill.engines
    demand = max(prefill.flow, decode.flow)
    carries = {count: flow_of(first, count, second, total - count) for count in range(1, total)}
    overloaded = prefill.waiting or decode.waiting or carries[now] < demand
    enough = [count for count, flow in carries.items() if flow >= demand * rules.headroom]
    if overloaded or not enough:
        best = max(carries, key=lambda count: (carries[count], -abs(count - now)))
        return best if carries[best] >= carries[now] * (1 + rules.gain) else now
    if not (prefill.measured and decode.measured):
        return now
    watts = {count: first.watts(count, demand) + second.watts(total - count, demand) for count in carries}
    best = min(enough, key=lambda count: (watts[count], abs(count - now)))
    return best if watts[best] <= watts[now] * (1 - rules.gain) else now

"""The SLO governor's policy: how far the clock or the cap may go down while every objective keeps a margin.

Going up is never delayed: a violated objective means the top at once. Going down takes small steps, one in each
``settle``, so that the next decision sees only what the last one did; and a level at which an objective was violated is
avoided for a while. Between the two bands of margin nothing moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from energyopt.core.slo import HIGHER_IS_BETTER, Slo, SloMetric
from energyopt.core.units import Seconds

from .speed import SpeedModel

MEMORY = Seconds(120.0)
"""How long a level that violated an objective is avoided."""
CALM = 3
"""Settling times without a violation before a level is lowered: where the top itself is too slow, it is needed."""
NO_TIME = Seconds(0.0)
LONG_AGO = Seconds(float("-inf"))


class Reason(StrEnum):
    """Why a level was chosen; a label of ``governor_decisions_total``."""

    VIOLATED = "violated"
    BURST = "burst"
    RESUMED = "resumed"
    TIGHT = "tight"
    HOLD = "hold"
    ROOM = "room"
    FLOOR = "floor"
    SETTLING = "settling"
    BACKED_OFF = "backed_off"
    FEW_SAMPLES = "few_samples"


@dataclass(frozen=True, slots=True)
class Measure:
    """One objective as measured over the window; ``estimate`` None without samples."""

    slo: Slo
    estimate: float | None
    samples: int

    @property
    def margin(self) -> float | None:
        """Room left as a share of the target; negative is a violation."""
        if self.estimate is None:
            return None
        if self.slo.metric in HIGHER_IS_BETTER:
            return 1 - self.slo.target / self.estimate if self.estimate > 0 else -1.0
        return 1 - self.estimate / self.slo.target


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision is made from.

    ``pace`` is the mean time of a token, None where none came. ``oldest`` is how long the oldest request without a
    first token has waited, 0 where none does.
    """

    at: Seconds
    level: float
    measures: Sequence[Measure]
    pace: Seconds | None = None
    oldest: Seconds = NO_TIME


@dataclass(frozen=True, slots=True)
class Decision:
    """``words`` say why, for the log. ``margin`` is the smallest that is known."""

    level: float
    reason: Reason
    words: str
    margin: float | None


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds of the level in its own unit (hertz or watts), and of the policy's patience.

    ``lower_above``: a margin that leaves room to go down. ``raise_below``: one that calls for going up.
    ``settle``: at least the length of the window that is measured. A burst begins when a request has waited for its
    first token for ``burst_share`` of what the objective allows, and is over below ``calm_share``.
    """

    floor: float
    top: float
    settle: Seconds
    lower_above: float = 0.25
    raise_below: float = 0.12
    largest_step: float = 0.12
    grain: float = 15e6
    few: int = 20
    burst_share: float = 0.4
    calm_share: float = 0.15
    memory: Seconds = MEMORY


@dataclass(slots=True)
class Governor:
    """Decides; touches nothing. Remembers when it last changed the level, what went wrong, and how time follows."""

    rules: Rules
    model: SpeedModel = field(init=False)
    changed: Seconds = LONG_AGO
    moved: Seconds = LONG_AGO
    raised: Seconds = LONG_AGO
    resume: float | None = None
    violated: Seconds = LONG_AGO
    bad_level: float = 0.0
    bad_until: Seconds = LONG_AGO

    def __post_init__(self) -> None:
        self.model = SpeedModel(self.rules.top)

    def decide(self, now: Situation) -> Decision:
        """The next level, within floor and top, with its reason."""
        rules = self.rules
        if now.pace is not None and now.at - self.moved >= rules.settle:
            self.model.observe(now.level, now.pace)
        decision = self._burst(now) or self._judged(now)
        if decision.level != now.level:
            self.moved = now.at
        return decision

    def _judged(self, now: Situation) -> Decision:
        """What the measured objectives call for."""
        known = [(measure.margin, measure) for measure in now.measures if measure.margin is not None]
        worst, tightest = min(known, key=lambda pair: pair[0] or 0.0) if known else (None, None)
        if worst is None or tightest is None:
            return Decision(now.level, Reason.FEW_SAMPLES, "nothing was measured lately", None)
        decision = self._decide(now, worst, tightest)
        if decision.level != now.level:
            self.changed = now.at
        return decision

    def _burst(self, now: Situation) -> Decision | None:
        """To the top before a queue becomes a violation, and back to where it was when the queue is gone."""
        targets = [measure.slo.target for measure in now.measures if measure.slo.metric is SloMetric.TTFT]
        if not targets:
            return None
        share = now.oldest / min(targets)
        words = f"the oldest request has waited {now.oldest * 1e3:.0f} ms for its first token"
        if share > self.rules.burst_share and now.level < self.rules.top:
            self.resume = now.level if self.resume is None else self.resume
            return Decision(self.rules.top, Reason.BURST, words, None)
        if self.resume is None:
            return None
        if share > self.rules.calm_share:
            return Decision(now.level, Reason.BURST, words, None)
        level, self.resume = self.resume, None
        return Decision(level, Reason.RESUMED, "the burst is over", None)

    def _decide(self, now: Situation, worst: float, tightest: Measure) -> Decision:
        rules, told = self.rules, f"{tightest.slo}: {_said(tightest)}"
        if worst < 0:
            self.violated = now.at
            if now.level < rules.top:  # at the top the level is not to blame
                self.bad_level, self.bad_until = now.level, Seconds(now.at + rules.memory)
            return Decision(rules.top, Reason.VIOLATED, f"{told}, to the top at once", worst)
        if worst < rules.raise_below:
            if now.at - self.raised < rules.settle / 2:
                return Decision(now.level, Reason.SETTLING, f"{told}, after it was raised", worst)
            self.raised = now.at
            level = self._higher(now.level, worst)
            return Decision(level, Reason.TIGHT, f"{told}, less than {rules.raise_below:.0%} is left", worst)
        hold = self._reason_to_hold(now, worst)
        if hold is not None:
            return Decision(now.level, hold, told, worst)
        lowest = rules.floor if now.at >= self.bad_until else max(rules.floor, self._above(self.bad_level))
        level = max(self._lower(now.level, worst), lowest)
        if level < now.level:
            return Decision(level, Reason.ROOM, f"{told}, more than {rules.lower_above:.0%} is left", worst)
        reason = Reason.FLOOR if lowest == rules.floor else Reason.BACKED_OFF
        return Decision(now.level, reason, told, worst)

    def _reason_to_hold(self, now: Situation, worst: float) -> Reason | None:
        """What forbids to go down now, though nothing calls for going up."""
        if worst <= self.rules.lower_above:
            return Reason.HOLD
        if any(measure.samples < self.rules.few for measure in now.measures):
            return Reason.FEW_SAMPLES
        if now.at - self.violated < CALM * self.rules.settle:
            return Reason.BACKED_OFF
        return Reason.SETTLING if now.at - self.changed < self.rules.settle else None

    def _lower(self, level: float, worst: float) -> float:
        """The lowest level whose predicted margin is still in the middle of the bands, one step down at most."""
        rules, wanted = self.rules, (self.rules.lower_above + self.rules.raise_below) / 2
        allowed = (1 - wanted) / max(1 - worst, 1e-9)
        lowest = level * (1 - rules.largest_step)
        candidate = level
        while candidate - rules.grain >= lowest and self.model.slowdown(level, candidate - rules.grain) <= allowed:
            candidate -= rules.grain
        return candidate

    def _higher(self, level: float, worst: float) -> float:
        """The lowest level that is predicted to leave the upper band's margin; at least one grain up."""
        rules = self.rules
        needed = (1 - rules.lower_above) / max(1 - worst, 1e-9)
        candidate = level + rules.grain
        while candidate < rules.top and self.model.slowdown(level, candidate) > needed:
            candidate += rules.grain
        return min(candidate, rules.top)

    def _above(self, level: float) -> float:
        """A level safely above one that failed."""
        return min(self.rules.top, level * (1 + self.rules.largest_step))


def _said(measure: Measure) -> str:
    estimate = measure.estimate or 0.0
    if measure.slo.metric in HIGHER_IS_BETTER:
        return f"{estimate:.3g}/s of {measure.slo.target:.3g}/s"
    return f"{estimate * 1e3:.3g} ms of {measure.slo.target * 1e3:.3g} ms"

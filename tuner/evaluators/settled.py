"""A gate before each measurement: the machine gets time to become idle and cool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload

from ..ports import Evaluator, Progress, ProgressSink

_POLL = Seconds(0.5)


class SettledEvaluator:
    """Waits up to the plan's ``settle`` seconds while ``busy`` gives a reason, then runs ``inner``.

    A machine that does not settle is measured as it is, and the result says so: waiting for ever would lose the study.
    """

    def __init__(self, inner: Evaluator, busy: Callable[[], str | None], clock: Clock) -> None:
        self._inner, self._busy, self._clock = inner, busy, clock

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        """As ``inner``; raises what it raises."""
        reason = self._settle(plan.settle, progress) if plan.settle > 0 else None
        result = self._inner.run(deployment, workload, plan, slos, progress)
        if reason is None:
            return result
        return result.model_copy(update={"power_reasons": (*result.power_reasons, f"not_settled: {reason}")})

    def _settle(self, limit: Seconds, progress: ProgressSink) -> str | None:
        begun = self._clock.now()
        reason = self._busy()
        while reason is not None and self._clock.now() - begun < limit:
            progress(Progress("launching", 0.0))
            self._clock.sleep(_POLL)
            reason = self._busy()
        return reason

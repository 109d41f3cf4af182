"""Any running OpenAI endpoint as an Evaluator: it is not ours, so only the load and the power of its devices change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import Knob, MeasurePlan, Space
from energyopt.core.workload import Workload

from ..ports import Progress, ProgressSink
from ..replay.http import Endpoint
from .chat_http import MeterOf, measure_server

ALLOWED = ("power.cap", "power.sm_clock")
"""Knobs, below a pool, that do not need the server to start anew."""


class EndpointEvaluator:
    """Measures the server at ``endpoint``; the deployment's power is applied by the study, its engine is as it is."""

    def __init__(self, endpoint: Endpoint, meter_of: MeterOf, clock: Clock | None = None) -> None:
        self._endpoint, self._meter_of = endpoint, meter_of
        self._clock = clock or MonotonicClock()

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        """One trial. Raises LaunchError if nothing answers there, TrialTimeoutError."""
        progress(Progress("launching", 0.0))
        metered = self._meter_of(deployment)
        return asyncio.run(measure_server(self._endpoint, workload, plan, slos, metered, self._clock, progress))


def takes(knob: Knob) -> bool:
    """Whether a running server can be measured under this knob."""
    return knob.path.partition(".")[2] in ALLOWED


def check_knobs(space: Space) -> None:
    """Raises ConfigError for a knob that a running server cannot take."""
    for knob in space.knobs:
        if not takes(knob):
            allowed = ", ".join(ALLOWED)
            raise ConfigError(f"The knob {knob.path!r} needs an engine that starts anew; an endpoint takes {allowed}.")

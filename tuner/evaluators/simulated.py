"""The simulator as an Evaluator: a study runs on hardware that need not exist. Every joule of it says so."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.config import Deployment, PoolConfig
from energyopt.core.errors import ConfigError, LaunchError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload

from ..counting import Window
from ..ports import Progress, ProgressSink
from ..simulator.constants import Constants, load_constants
from ..simulator.hardware import load_gpu
from ..simulator.machine import Machine
from ..simulator.meter import SimulatedMeter
from ..simulator.models import load_model_spec
from ..simulator.replica import Replica
from ..simulator.traffic import SessionLoad
from ..window import report


class SimulatedEvaluator:
    """Runs a deployment of one pool on a model of ``gpu``: the engine's scheduler and cache, predicted time and power.

    ``model`` names the simulator's description where the deployment's own model name is not one. Replicas are alike and
    share the load evenly, so one is simulated with its part of the sessions and the result is of the whole pool.
    """

    def __init__(self, gpu: str, *, model: str | None = None, constants: str | Constants | None = None) -> None:
        self._gpu = load_gpu(gpu)
        self._model, self._constants = model, constants

    def run(
        self,
        deployment: Deployment,
        workload: Workload,
        plan: MeasurePlan,
        slos: Sequence[Slo],
        progress: ProgressSink,
    ) -> RunResult:
        """One trial on a virtual clock. Raises OutOfMemoryError if it does not fit, LaunchError if it cannot exist."""
        progress(Progress("launching", 0.0))
        pool = _only_pool(deployment)
        machine = self._machine(pool)
        load = SessionLoad(workload)
        replicas = [Replica(machine, pool.engine, on_finish=load.follow, name=str(n)) for n in range(pool.replicas)]
        for number, request in enumerate(load.start()):
            replicas[number % len(replicas)].submit(request)
        end = plan.warmup + plan.window
        progress(Progress("measuring", 0.0))
        for replica in replicas:
            replica.run(end)
            replica.abort()
        progress(Progress("done", 1.0))
        window = Window(plan.warmup, Seconds(end))
        records = [record for replica in replicas for record in replica.records]
        steps = sorted((step for replica in replicas for step in replica.steps), key=lambda step: step.end)
        meter = SimulatedMeter([replica.runner for replica in replicas])
        return report(window, records, steps, meter, slos).model_copy(update={"simulated": True})

    def _machine(self, pool: PoolConfig) -> Machine:
        spec = load_model_spec(self._model or pool.engine.model)
        given = self._constants
        fixed = given if isinstance(given, Constants) else load_constants(self._gpu, moe=spec.moe, path=given)
        try:
            return Machine(spec, self._gpu, pool.engine.layout, fixed, pool.power)
        except ConfigError as error:
            raise LaunchError(error.message) from error


def _only_pool(deployment: Deployment) -> PoolConfig:
    if deployment.prefill is not None:
        raise LaunchError("The event simulation runs one pool; a deployment with a prefill pool is only screened.")
    return deployment.decode

"""Builds plans: from a model, GPUs and an SLO to a verified recommendation. Everything in it is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from energyopt.core.config import Config, Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.slo import Slo
from tuner.export.command import vllm_command
from tuner.simulator.constants import Constants, load_constants
from tuner.simulator.hardware import Gpu, load_gpu
from tuner.simulator.models import ModelSpec, Precision, load_model_spec
from tuner.simulator.planner import BUDGET, Planner
from tuner.simulator.plans import Plan, Pool, Screening
from tuner.simulator.sensitivity import Influence, sensitivity
from tuner.simulator.steady import Lengths
from tuner.simulator.verification import BLOCK, Verified, verify

NOTICE = "simulated: predicted by a model of the hardware, not measured"
MAX_VERIFIED = 4
"""Plans of the front that are simulated event by event, best first."""
RIVALS = 12
"""Plans of the front that might overtake the recommendation if an unverified value is off."""
Stage = Callable[[str], None]


class PlanRequest(Config):
    """What ``energyopt plan`` was asked."""

    model: str
    gpus: tuple[str, ...] = Field(min_length=1)
    devices: int = Field(ge=1, le=4096)
    prompt: int = Field(ge=1, le=1_000_000)
    output: int = Field(ge=2, le=100_000)
    cached: float = Field(0.0, ge=0, lt=1)
    slos: tuple[str, ...] = Field(min_length=1)
    precision: Precision | None = None
    pools: bool = True
    constants: str | None = None
    power_budget: float | None = Field(None, gt=0)


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The plan for one GPU type. ``verified`` are front plans that were run, best first, feasible or not;
    ``influences`` is how the recommendation depends on what nobody has verified.
    """

    gpu: Gpu
    spec: ModelSpec
    constants: Constants
    devices: int
    screening: Screening
    verified: tuple[Verified, ...]
    influences: tuple[Influence, ...] = ()

    @property
    def recommendation(self) -> Plan | None:
        """The most frugal plan whose event simulation keeps every SLO."""
        return next((one.plan for one in self.verified if one.feasible), None)

    def run_of(self, plan: Plan) -> Verified | None:
        return next((one for one in self.verified if one.plan is plan), None)


def make_plans(request: PlanRequest, on_stage: Stage = lambda text: None) -> list[GpuPlan]:
    """One plan for each GPU type, at the same SLO. With a power budget each type gets the GPUs that it can supply.

    ``on_stage`` is told what is being done. Raises ConfigError, SloError, NotFoundError.
    """
    return [_plan(request, load_gpu(name), on_stage) for name in request.gpus]


def _plan(request: PlanRequest, gpu: Gpu, on_stage: Stage) -> GpuPlan:
    spec = load_model_spec(request.model, request.precision)
    constants = load_constants(gpu, moe=spec.moe, path=request.constants)
    slos = [Slo.parse(text) for text in request.slos]
    if any(slo.metric.value == "goodput" for slo in slos):
        raise ConfigError("A plan has no arrival rate, so goodput cannot be an SLO of it.")
    devices = request.devices
    if request.power_budget is not None:
        devices = min(devices, int(request.power_budget / (gpu.get("provisioned") or gpu.value("tdp"))))
        if devices < 1:
            raise ConfigError(f"A power budget of {request.power_budget:g} W does not supply one {gpu.name}.")
    lengths = Lengths(request.prompt, request.output, request.cached)
    planner = Planner(spec, gpu, constants, devices=devices, lengths=lengths, slos=slos, pools=request.pools)
    on_stage(f"screening layouts, pools, clocks and caps on {devices} x {gpu.name}")
    screening = planner.screen()
    verified = tuple(_verified(planner, screening, slos, on_stage))
    plan = GpuPlan(gpu, spec, constants, devices, screening, verified)
    if plan.recommendation is None:
        return plan
    on_stage("weighing what nobody has verified")
    front = [one for one in screening.front if one is not plan.recommendation and _not_refuted(plan, one)]
    return replace(plan, influences=tuple(sensitivity(planner, plan.recommendation, front[:RIVALS])))


def _not_refuted(plan: GpuPlan, one: Plan) -> bool:
    run = plan.run_of(one)
    return run is None or run.feasible


def _verified(planner: Planner, screening: Screening, slos: Sequence[Slo], on_stage: Stage) -> Iterator[Verified]:
    """The best plans until one holds, and at last the best without a prefill pool."""
    plain = [plan for plan in screening.front if plan.prefill is None]
    for plan in [*screening.front[:MAX_VERIFIED], *plain[:1]]:
        on_stage(f"simulating a deployment of {plan.tokens_per_joule:.3g} tokens/J event by event")
        run = verify(planner, plan, slos)
        yield run
        if run.feasible:
            return


def launch_commands(plan: GpuPlan, chosen: Plan, model: str) -> list[str]:
    """What to start: one line an engine kind, and what no flag carries as comments."""
    lines = []
    pools = [("decode" if chosen.prefill else "engine", chosen.decode)]
    if chosen.prefill is not None:
        pools.insert(0, ("prefill", chosen.prefill))
    for role, pool in pools:
        command = vllm_command(Deployment(decode=_pool_config(pool, model)))
        lines.append(f"# {role}: start {pool.replicas} of")
        lines.append(command.shell)
        lines += [f"# {note}" for note in command.remarks]
    if chosen.prefill is not None:
        lines.append("# connect the pools with a KV connector such as NixlConnector")
    return lines


def deployment_of(plan: Plan, model: str) -> Deployment:
    """A plan in the project's own form: both pools with their replicas, limits and whole layouts."""
    pools = [
        _pool_config(pool, model).model_copy(update={"replicas": pool.replicas})
        for pool in (plan.decode, plan.prefill)
        if pool
    ]
    return Deployment(decode=pools[0], prefill=pools[1] if len(pools) > 1 else None)


def _pool_config(pool: Pool, model: str) -> PoolConfig:
    engine = EngineConfig.model_validate(
        {
            "model": model,
            "max_num_seqs": pool.batch,
            "max_num_batched_tokens": max(BUDGET, pool.batch),
            "kv": {"block_tokens": BLOCK},
            "layout": pool.layout,
        }
    )
    return PoolConfig(engine=engine, power=pool.power)

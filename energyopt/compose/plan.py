"""Builds plans: from a model, GPUs and an SLO to a verified recommendation. Everything in it is simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from energyopt.core.config import Config, Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.slo import Slo
from tuner.export.command import vllm_command
from tuner.simulator.constants import Constants, load_constants
from tuner.simulator.hardware import Gpu, load_gpu
from tuner.simulator.models import ModelSpec, Precision, load_model_spec
from tuner.simulator.planner import BUDGET, Plan, Planner, Pool, Screening
from tuner.simulator.steady import Lengths
from tuner.simulator.verification import BLOCK, Verified, verify

NOTICE = "simulated: predicted by a model of the hardware, not measured"
MAX_VERIFIED = 4
"""Plans of the front that are simulated event by event, best first."""


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
    """The plan for one GPU type. ``verified`` are front plans that were run, best first, feasible or not."""

    gpu: Gpu
    spec: ModelSpec
    constants: Constants
    devices: int
    screening: Screening
    verified: tuple[Verified, ...]

    @property
    def recommendation(self) -> Plan | None:
        """The most frugal plan whose event simulation keeps every SLO."""
        return next((one.plan for one in self.verified if one.feasible), None)

    def run_of(self, plan: Plan) -> Verified | None:
        return next((one for one in self.verified if one.plan is plan), None)


def make_plans(request: PlanRequest) -> list[GpuPlan]:
    """One plan for each GPU type, at the same SLO. With a power budget each type gets the GPUs that it can supply.

    Raises ConfigError, SloError, NotFoundError.
    """
    return [_plan(request, load_gpu(name)) for name in request.gpus]


def _plan(request: PlanRequest, gpu: Gpu) -> GpuPlan:
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
    screening = planner.screen()
    return GpuPlan(gpu, spec, constants, devices, screening, tuple(_verified(planner, screening, slos)))


def _verified(planner: Planner, screening: Screening, slos: Sequence[Slo]) -> Iterator[Verified]:
    """The best plans until one holds, and at last the best without a prefill pool."""
    plain = [plan for plan in screening.front if plan.prefill is None]
    for plan in [*screening.front[:MAX_VERIFIED], *plain[:1]]:
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
        experts = " --enable-expert-parallel" if pool.layout.ep > 1 else ""
        lines.append(f"# {role}: start {pool.replicas} of")
        lines.append(command.shell + experts)
        lines += [f"# {note}" for note in command.dropped]
    if chosen.prefill is not None:
        lines.append("# connect the pools with a KV connector such as NixlConnector")
    return lines


def _pool_config(pool: Pool, model: str) -> PoolConfig:
    engine = EngineConfig.model_validate(
        {
            "model": model,
            "max_num_seqs": pool.batch,
            "max_num_batched_tokens": max(BUDGET, pool.batch),
            "kv": {"block_tokens": BLOCK},
            "layout": pool.layout.model_copy(update={"ep": 1}),
        }
    )
    return PoolConfig(engine=engine, power=pool.power)


def plan_document(request: PlanRequest, plans: Sequence[GpuPlan]) -> dict[str, object]:
    """The whole answer as one JSON-ready document."""
    return {
        "source": "simulated",
        "notice": NOTICE,
        "request": request.model_dump(mode="json"),
        "plans": [_gpu_document(plan, request.model) for plan in plans],
    }


def _gpu_document(plan: GpuPlan, model: str) -> dict[str, object]:
    chosen = plan.recommendation
    return {
        "gpu": plan.gpu.name,
        "devices": plan.devices,
        "constants": plan.constants.origin,
        "provenance": plan.constants.provenance,
        "relative_error": plan.constants.error,
        "unverified_facts": list(plan.gpu.unverified),
        "model_is_approximate": plan.spec.approximate,
        "layouts_considered": plan.screening.layouts.considered,
        "layouts_removed": dict(plan.screening.layouts.removed),
        "points_removed": dict(plan.screening.removed),
        "priced": plan.screening.priced,
        "feasible": plan.screening.feasible,
        "front": [point_document(one, plan.run_of(one)) for one in plan.screening.front],
        "recommendation": None if chosen is None else point_document(chosen, plan.run_of(chosen)),
        "launch": [] if chosen is None else launch_commands(plan, chosen, model),
        "nearest": [point_document(one, None) for one in plan.screening.nearest],
    }


def point_document(plan: Plan, run: Verified | None) -> dict[str, object]:
    """One deployment with its screened figures, and those of its run if it had one."""
    document: dict[str, object] = {
        "decode": _pool_document(plan.decode),
        "prefill": None if plan.prefill is None else _pool_document(plan.prefill),
        "tok_s_user": plan.user_rate,
        "tok_s_gpu": plan.device_rate,
        "tokens_per_joule": plan.tokens_per_joule,
        "tok_s_per_provisioned_mw": plan.rate_per_megawatt,
        "ttft_s": plan.ttft,
        "tpot_s": plan.tpot,
        "violations": dict(plan.violations),
        "verified_by_events": run is not None,
    }
    if run is not None:
        document["events"] = {
            "tokens_per_joule": run.tokens_per_joule,
            "tok_s_gpu": run.rate / plan.devices,
            "feasible": run.feasible,
            "verdicts": [verdict.model_dump(mode="json") for verdict in run.result.verdicts],
        }
    return document


def _pool_document(pool: Pool) -> Mapping[str, object]:
    return {
        "layout": pool.layout.model_dump(mode="json"),
        "replicas": pool.replicas,
        "devices": pool.devices,
        "max_num_seqs": pool.batch,
        "cap_w": pool.power.cap,
        "sm_clock_hz": pool.power.sm_clock,
    }

"""What a plan leaves behind: one JSON document, commands, manifests, and the picture of its Pareto front."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError
from tuner.export.forms import FORMS, render
from tuner.export.plan_picture import PlanPoint, plan_png
from tuner.simulator.plans import Plan, Pool
from tuner.simulator.sensitivity import FACTORS
from tuner.simulator.verification import Verified

from .plan import NOTICE, GpuPlan, PlanRequest, deployment_of, launch_commands

FORMAT = "energyopt.plan/1"
"""Name and version of the document; a change that breaks a reader takes the next number."""
MANIFESTS = ("kubernetes", "dynamo", "llm-d")


def write_plan(folder: Path, request: PlanRequest, plans: Sequence[GpuPlan]) -> list[Path]:
    """``plan.json``, ``plan.png``, and for each recommendation ``launch-GPU.sh`` and a manifest of every orchestrator
    that can express it. Raises ConfigError.
    """
    fronts = {one.gpu.name: _points(one) for one in plans if one.screening.front}
    picture = plan_png(fronts, title=f"{request.model}, {request.prompt} + {request.output} tokens, simulated")
    document = json.dumps(plan_document(request, plans), indent=2, allow_nan=False) + "\n"
    files = {"plan.json": document.encode(), "plan.png": picture}
    for one in plans:
        chosen = one.recommendation
        if chosen is not None:
            lines = ["#!/bin/sh", f"# {NOTICE}", *launch_commands(one, chosen, request.model)]
            files[f"launch-{one.gpu.name}.sh"] = ("\n".join(lines) + "\n").encode()
            files |= _manifests(one.gpu.name, deployment_of(chosen, request.model))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"The folder {folder} cannot be written: {error.strerror}.") from error
    return [folder / name for name in files]


def _manifests(gpu: str, deployment: Deployment) -> dict[str, bytes]:
    able = [form for form in MANIFESTS if deployment.prefill is None or FORMS[form].two_pools]
    texts = {form: render(form, deployment)[0] for form in able}
    return {f"{form}-{gpu}.yaml": f"# {NOTICE}\n{text}".encode() for form, text in texts.items()}


def _points(one: GpuPlan) -> list[PlanPoint]:
    chosen = one.recommendation
    return [PlanPoint(plan.user_rate, plan.tokens_per_joule, plan is chosen) for plan in one.screening.front]


def plan_document(request: PlanRequest, plans: Sequence[GpuPlan]) -> dict[str, object]:
    """The whole answer as one JSON-ready document."""
    return {
        "format": FORMAT,
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
        "deployment": None if chosen is None else deployment_of(chosen, model).model_dump(mode="json"),
        "launch": [] if chosen is None else launch_commands(plan, chosen, model),
        "sensitivity": {"factors": list(FACTORS), "values": [asdict(one) for one in plan.influences]},
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

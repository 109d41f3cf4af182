"""Plans: screened figures agree with the event simulation, misses are told, and traffic keeps its prefixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from energyopt.compose.plan import GpuPlan, PlanRequest, launch_commands, make_plans
from energyopt.compose.plan_files import plan_document, write_plan
from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.slo import Slo
from tuner.simulator.constants import load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.models import load_model_spec
from tuner.simulator.planner import Planner
from tuner.simulator.sensitivity import sensitivity
from tuner.simulator.steady import Lengths
from tuner.simulator.traffic import mooncake_requests, tokens_of
from tuner.simulator.verification import verify

SLOS = ("ttft:p90<2s", "tpot:p90<50ms")


def request(**changes: object) -> PlanRequest:
    base = {"model": "llama-3.1-8b", "gpus": ("h100",), "devices": 8, "prompt": 500, "output": 60, "slos": SLOS}
    return PlanRequest.model_validate({**base, **changes})


def planner(model: str = "llama-3.1-8b", gpu_name: str = "h100", devices: int = 8) -> Planner:
    gpu, spec = load_gpu(gpu_name), load_model_spec(model)
    constants = load_constants(gpu, moe=spec.moe)
    slos = [Slo.parse(text) for text in SLOS]
    return Planner(spec, gpu, constants, devices=devices, lengths=Lengths(500, 60), slos=slos)


def test_the_front_is_feasible_sorted_and_not_dominated() -> None:
    screening = planner().screen()
    joules = [plan.tokens_per_joule for plan in screening.front]
    assert joules == sorted(joules, reverse=True)
    assert all(plan.feasible and plan.devices == 8 for plan in screening.front)
    assert screening.best is screening.front[0]
    assert screening.priced > screening.feasible > 0


def test_the_analytic_path_agrees_with_the_event_simulation() -> None:
    one = planner()
    plans = [plan for plan in one.screen().front if plan.prefill is None]
    for plan in (plans[0], plans[-1]):
        run = verify(one, plan, one.slos)
        assert run.result.simulated
        assert run.rate == pytest.approx(plan.rate, rel=0.15)
        assert run.tokens_per_joule == pytest.approx(plan.tokens_per_joule, rel=0.15)


def test_devices_that_no_engine_holds_draw_idle_power() -> None:
    odd, even = planner(devices=9, model="llama-3.1-70b"), planner(devices=8, model="llama-3.1-70b")
    best = [max((p for p in one.screen().front if p.prefill is None), key=lambda p: p.rate) for one in (odd, even)]
    assert best[0].rate == pytest.approx(best[1].rate)
    assert best[0].watts == pytest.approx(best[1].watts + load_gpu("h100").value("idle"))


@pytest.fixture(scope="module")
def planned() -> GpuPlan:
    """The plan of eight H100 without pools; it takes seconds."""
    (plan,) = make_plans(request(pools=False))
    return plan


def test_a_recommendation_comes_with_its_command_and_says_that_it_is_simulated(planned: GpuPlan) -> None:
    plan, chosen = planned, planned.recommendation
    assert chosen is not None
    run = plan.run_of(chosen)
    assert run is not None
    assert run.feasible
    text = "\n".join(launch_commands(plan, chosen, "llama-3.1-8b"))
    assert "vllm serve meta-llama/Meta-Llama-3.1-8B " in text
    assert f"--max-num-seqs {chosen.decode.batch}" in text
    document = plan_document(request(pools=False), [plan])
    assert document["source"] == "simulated"
    json.dumps(document, allow_nan=False)


def test_an_slo_that_nothing_keeps_gives_the_nearest_misses() -> None:
    (plan,) = make_plans(request(slos=("tpot:p90<100us",)))
    assert plan.recommendation is None
    assert plan.screening.front == ()
    nearest = plan.screening.nearest
    assert [one.worst for one in nearest] == sorted(one.worst for one in nearest)
    assert all(value > 0 for value in nearest[0].violations.values())


def test_a_model_that_does_not_fit_has_no_layout() -> None:
    (plan,) = make_plans(request(model="llama-3.1-405b", devices=2))
    assert plan.screening.priced == 0
    assert plan.screening.layouts.removed["memory: weights and one whole request"] > 0


def test_a_power_budget_limits_the_gpus() -> None:
    plans = make_plans(request(gpus=("h100", "b200"), devices=64, power_budget=20_000.0, pools=False))
    assert [plan.devices for plan in plans] == [11, 9]
    with pytest.raises(ConfigError, match="does not supply"):
        make_plans(request(power_budget=100.0))


def test_equal_beginnings_become_equal_tokens() -> None:
    first, second = tokens_of("You are helpful. Tell me"), tokens_of("You are helpful. Sing")
    assert first[:4] == second[:4]
    assert first[4:] != second[4:]


def test_trace_rows_share_what_their_hashes_share(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 1500, "input_length": 700, "output_length": 0, "hash_ids": [0, 9]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    first, second, again, _ = mooncake_requests(path, repeat=2)
    assert (len(first.prompt), len(second.prompt), second.arrival, second.output_tokens) == (1100, 700, 1.5, 1)
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512] != second.prompt[512]
    assert set(first.prompt).isdisjoint(again.prompt)
    path.write_text('{"timestamp": 0}', encoding="utf-8")
    with pytest.raises(ConfigError, match="Line 1"):
        list(mooncake_requests(path))
    with pytest.raises(NotFoundError, match="cannot be read"):
        list(mooncake_requests(tmp_path / "absent"))


def test_a_plan_leaves_its_manifest_picture_and_commands(tmp_path: Path, planned: GpuPlan) -> None:
    asked, plans = request(pools=False), [planned]
    paths = {path.name: path for path in write_plan(tmp_path / "out", asked, plans)}
    manifests = {f"{form}-h100.yaml" for form in ("kubernetes", "dynamo", "llm-d")}
    assert set(paths) == {"plan.json", "plan.png", "launch-h100.sh", *manifests}
    document = json.loads(paths["plan.json"].read_text(encoding="utf-8"))
    assert document["format"] == "energyopt.plan/1"
    deployment = Deployment.model_validate(document["plans"][0]["deployment"])
    chosen = plans[0].recommendation
    assert chosen is not None
    assert deployment.devices == chosen.decode.devices
    assert paths["plan.png"].read_bytes().startswith(b"\x89PNG")
    assert "vllm serve" in paths["launch-h100.sh"].read_text(encoding="utf-8")


def test_repricing_on_the_same_device_changes_nothing() -> None:
    one = planner()
    for plan in one.screen().front:
        again = one.reprice(plan)
        assert again.tokens_per_joule == pytest.approx(plan.tokens_per_joule)
        assert again.violations == pytest.approx(plan.violations)


def test_what_nobody_verified_is_weighed_and_told_from_what_was_measured() -> None:
    known, unknown = planner(gpu_name="h100"), planner(gpu_name="mi300x")
    for one, carried in ((known, False), (unknown, True)):
        front = one.screen().front
        found = {influence.name: influence for influence in sensitivity(one, front[0], front[1:])}
        assert ("power.byte" in found) is carried
        assert "power.link_byte" not in found or front[0].decode.layout.tp > 1
        sizes = [influence.size for influence in found.values()]
        assert sizes == sorted(sizes, reverse=True)
        if carried:
            less, more = found["power.byte"].changes
            assert less is not None
            assert more is not None
            assert less > 0 > more

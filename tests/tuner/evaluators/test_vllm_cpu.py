"""vLLM's own CPU build under the evaluator: opt-in, since it takes minutes to start and an environment of its own.

``ENERGYOPT_VLLM`` is its program, ``ENERGYOPT_VLLM_MODEL`` a folder with a small model in Hugging Face's form; the page
on study files says how to get them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from energyopt.core.config import Deployment, EngineConfig, KvConfig, PoolConfig
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload
from tests.tuner.evaluators.unmetered import unmetered
from tuner.evaluators.launched import VLLM, Launch, LaunchedEvaluator

PROGRAM, MODEL = os.environ.get("ENERGYOPT_VLLM"), os.environ.get("ENERGYOPT_VLLM_MODEL")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (PROGRAM and MODEL), reason="ENERGYOPT_VLLM and ENERGYOPT_VLLM_MODEL name no vLLM to try"),
]


@pytest.mark.parametrize("seqs", [2, 8])
def test_a_real_vllm_is_launched_measured_and_ended(seqs: int, workload: Workload, tmp_path: Path) -> None:
    launch = Launch(
        program=(str(PROGRAM), "serve"),
        environment={"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
        arguments=("--enforce-eager",),
        log_dir=tmp_path,
    )
    kv = KvConfig(block_tokens=32)  # the least that its CPU attention takes
    engine = EngineConfig(
        model=str(MODEL), device="cpu", dtype="bfloat16", max_model_len=1024, max_num_seqs=seqs, kv=kv
    )
    plan = MeasurePlan(warmup=Seconds(2.0), window=Seconds(10.0), timeout=Seconds(400.0))
    evaluator = LaunchedEvaluator(VLLM, launch, unmetered)
    deployment = Deployment(decode=PoolConfig(engine=engine))
    result = evaluator.run(deployment, workload, plan, [Slo.parse("ttft:p90<60s")], lambda progress: None)
    assert evaluator.version is not None
    assert result.failed_requests == 0
    assert result.requests > 0
    assert result.cached_tokens is not None, "the launch asks for what the cache spared"

"""How likely a prompt is equals transformers' log-softmax, through chunks, a warm cache and preemption."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig
from energyopt.core.units import Seconds
from engine.batch import score_limit
from engine.kv.configured import cache_for
from engine.models import LoadedModel
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler

PROMPTS = [list(range(seed, seed + length)) for seed, length in ((3, 30), (3, 41), (90, 5), (7, 60), (200, 1))]


@pytest.mark.parametrize(
    ("budget", "blocks"), [(2048, 400), (7, 400), (16, 26)], ids=["whole", "small chunks", "preempted"]
)
def test_prompt_logprobs_equal_transformers(
    tiny: LoadedModel, tiny_config: EngineConfig, tiny_oracle: Any, budget: int, blocks: int
) -> None:
    kv = tiny_config.kv.model_copy(update={"memory_bytes": 2048 * blocks})
    config = tiny_config.model_copy(update={"kv": kv, "max_num_seqs": 4, "max_num_batched_tokens": budget})
    runner = TorchRunner(tiny, config, FakeClock())
    scheduler = Scheduler(
        config, cache_for(config, runner.cache), max_model_len=tiny.max_model_len, most_scored=score_limit(runner)
    )
    requests: list[Request] = []
    for turn in range(3):  # first without scores, so that the cache knows every prompt
        params = SamplingParams(max_tokens=(14, 14, 0)[turn], temperature=0, prompt_logprobs=3 if turn else None)
        for prompt in PROMPTS:
            requests.append(Request(f"r{len(requests)}", tuple(prompt), params, Seconds(float(len(requests)))))
            scheduler.add(requests[-1])
        while (batch := scheduler.schedule()) is not None:
            scheduler.settle(batch, runner.run(batch))
            scheduler.check_integrity()
    plain, scored, alone = (requests[start : start + len(PROMPTS)] for start in (0, 5, 10))
    assert [one.output for one in scored] == [one.output for one in plain]
    assert (sum(one.num_preemptions for one in scored) > 0) == (blocks == 26)
    for one, other in zip(scored, alone, strict=True):
        with torch.inference_mode():
            wanted = torch.log_softmax(tiny_oracle(torch.tensor([one.prompt])).logits[0], dim=-1)
        top = wanted.topk(3)
        for scores in (one.scores, other.scores):
            assert len(scores) == len(one.prompt) - 1
            for place, found in enumerate(scores):
                assert found.chosen == pytest.approx(float(wanted[place, one.prompt[place + 1]]), abs=1e-4)
                assert [value for _, value in found.top] == pytest.approx(top.values[place].tolist(), abs=1e-4)
                assert [token for token, _ in found.top] == top.indices[place].tolist()
        assert other.output == []

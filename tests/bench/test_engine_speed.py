"""The engine beside transformers' ``generate``: the same weights, threads and prompts, alternated in one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteriaList

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import DType, EngineConfig, KvConfig
from energyopt.core.units import Bytes
from engine.kv.coordinator import KvCoordinator
from engine.model.gguf_file import GgufFile
from engine.model.gguf_source import GgufSource
from engine.models import load_model, resolve_model
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler
from engine.step import StepLoop
from tests.bench.figures import Report

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
PROMPT, LONG_PROMPT, NEW = 64, 512, 32
BATCHES = (1, 8, 16)
ROUNDS = 3
THREADS = int(os.environ.get("BENCH_THREADS", len(os.sched_getaffinity(0))))


@dataclass
class Times:
    """Seconds of one generation: everything, and the part until every first token is there."""

    total: float
    first: float


Generate = Callable[[list[list[int]], int], Times]


def _show(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a bench exists to print its figures


def _prompts(batch: int, length: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(100, 40000, (batch, length), generator=generator).tolist()


def _engine(dtype: DType) -> tuple[Generate, str]:
    config = EngineConfig(
        model="smollm2-135m",
        dtype=dtype,
        device="cpu",
        threads=THREADS,
        max_num_batched_tokens=8192,
        kv=KvConfig(memory_bytes=Bytes(2**29), prefix_caching=False),
    )
    loaded = load_model(config)
    runner = TorchRunner(loaded, config, MonotonicClock())
    numbers = iter(range(1 << 30))

    def generate(prompts: list[list[int]], new: int) -> Times:
        scheduler = Scheduler(config, KvCoordinator(runner.cache), max_model_len=loaded.max_model_len)
        loop = StepLoop(scheduler, runner, lambda settled, record: None)
        params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
        start = time.perf_counter()
        requests = [Request(str(next(numbers)), tuple(p), params, MonotonicClock().now()) for p in prompts]
        for request in requests:
            scheduler.add(request)
        while not all(request.output for request in requests):
            loop.step()
        first = time.perf_counter() - start
        while loop.step():
            pass
        return Times(time.perf_counter() - start, first)

    return generate, str(runner.dtype).removeprefix("torch.")


def _transformers(dtype: torch.dtype) -> Generate:
    source = GgufSource(GgufFile(resolve_model("smollm2-135m")))
    spec = source.spec
    config = LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
        tie_word_embeddings=spec.tied,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=2,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval()
    state = {name: source.tensor(name, tuple(value.shape)) for name, value in model.named_parameters()}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model = model.to(dtype)

    def generate(prompts: list[list[int]], new: int) -> Times:
        torch.set_num_threads(THREADS)
        ids, marks = torch.tensor(prompts), []

        def mark(sequences: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
            """Called after each token; stops nothing."""
            marks.append(time.perf_counter())
            return torch.zeros(len(sequences), dtype=torch.bool)

        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([mark]),
            )
        total = time.perf_counter() - start
        assert out.shape == (len(prompts), len(prompts[0]) + new)
        return Times(total, marks[0] - start)

    return generate


def _measure(engines: dict[str, Generate], batch: int, length: int, new: int) -> dict[str, Times]:
    """Best of alternated rounds: the least disturbed run of each."""
    prompts = _prompts(batch, length)
    runs = [{name: generate(prompts, new) for name, generate in engines.items()} for _ in range(ROUNDS)]
    return {name: Times(min(r[name].total for r in runs), min(r[name].first for r in runs)) for name in engines}


def _ratios(engines: dict[str, Generate], twin: str) -> dict[tuple[str, int], float]:
    """Print a table; returns generated tokens per second, prompt included, relative to ``twin``."""
    ratios: dict[tuple[str, int], float] = {}
    _show(f"\nSmolLM2-135M, {THREADS} threads, {PROMPT} prompt + {NEW} new tokens, tok/s, best of {ROUNDS} rounds")
    for batch in BATCHES:
        times = _measure(engines, batch, PROMPT, NEW)
        for name, run in times.items():
            decode = batch * (NEW - 1) / (run.total - run.first)
            ratios[name, batch] = times[twin].total / run.total
            _show(
                f"{name:<24} batch {batch:>2}  decode {decode:7.1f}  prefill {batch * PROMPT / run.first:7.1f}  "
                f"whole {batch * NEW / run.total:7.1f}  ratio {ratios[name, batch]:5.2f}"
            )
    for name, run in _measure(engines, 1, LONG_PROMPT, 1).items():
        _show(f"{name:<24} prompt {LONG_PROMPT}  prefill {LONG_PROMPT / run.first:7.1f}")
    return ratios


def test_bfloat16_is_faster_than_transformers(figure: Report) -> None:
    chosen, dtype = _engine("auto")
    mine, auto, twin = "bfloat16", f"auto ({dtype})", "transformers bfloat16"
    ratios = _ratios({mine: _engine("bfloat16")[0], auto: chosen, twin: _transformers(torch.bfloat16)}, twin)
    for batch, goal in zip(BATCHES, ("at least 1.3", "", "at least 1.5"), strict=True):
        figure(f"engine (torch, bf16) beside transformers, batch {batch}", ratios[mine, batch], "x", goal)
    assert ratios[mine, 1] >= 1.3
    assert ratios[mine, 16] >= 1.5
    assert ratios[auto, 1] >= 1.3
    assert ratios[auto, 16] >= 1.5


def test_float32_is_faster_than_transformers(figure: Report) -> None:
    twin = "transformers float32"
    ratios = _ratios({"float32": _engine("float32")[0], twin: _transformers(torch.float32)}, twin)
    for batch in BATCHES:
        figure(f"engine (torch, fp32) beside transformers, batch {batch}", ratios["float32", batch], "x", "at least 1")
    assert min(ratios.values()) >= 1.0

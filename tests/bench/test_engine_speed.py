"""The engine beside transformers' ``generate``: the same weights, threads and prompts, alternated in one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
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

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
PROMPT, LONG_PROMPT, NEW = 128, 512, 48
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
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
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


def _best(runs: list[Times]) -> Times:
    return Times(min(run.total for run in runs), min(run.first for run in runs))


def _compare(ours: Generate, theirs: Generate, batch: int, length: int, new: int) -> tuple[Times, Times]:
    """Best of alternated rounds: the least disturbed run of each."""
    prompts = _prompts(batch, length)
    pairs = [(ours(prompts, new), theirs(prompts, new)) for _ in range(ROUNDS)]
    return _best([pair[0] for pair in pairs]), _best([pair[1] for pair in pairs])


def _rows(ours: Generate, theirs: Generate, label: str) -> Iterator[tuple[int, float]]:
    """Print one line per batch size; yields the ratio of generated tokens per second, prompt included."""
    for batch in BATCHES:
        mine, other = _compare(ours, theirs, batch, PROMPT, NEW)
        decode = [batch * (NEW - 1) / (t.total - t.first) for t in (mine, other)]
        whole = [batch * NEW / t.total for t in (mine, other)]
        _show(
            f"{label:<22} batch {batch:>2}  decode {decode[0]:7.1f} tok/s (transformers {decode[1]:6.1f})  "
            f"with prefill {whole[0]:7.1f} ({whole[1]:6.1f})  ratio {whole[0] / whole[1]:.2f}"
        )
        yield batch, whole[0] / whole[1]
    mine, other = _compare(ours, theirs, 1, LONG_PROMPT, 1)
    rates = [LONG_PROMPT / t.first for t in (mine, other)]
    _show(f"{label:<22} prefill {LONG_PROMPT}  {rates[0]:7.1f} tok/s (transformers {rates[1]:6.1f})")


def test_bfloat16_is_faster_than_transformers() -> None:
    theirs = _transformers(torch.bfloat16)
    ours, _ = _engine("bfloat16")
    _show(f"\nSmolLM2-135M, {THREADS} threads, {torch.get_num_threads()} used, {PROMPT} prompt + {NEW} new tokens")
    ratios = dict(_rows(ours, theirs, "bfloat16"))
    assert ratios[1] >= 1.3
    assert ratios[16] >= 1.5


def test_the_chosen_dtype_is_faster_than_transformers_bfloat16() -> None:
    ours, dtype = _engine("auto")
    ratios = dict(_rows(ours, _transformers(torch.bfloat16), f"auto ({dtype})"))
    assert min(ratios.values()) >= 1.3


def test_float32_is_faster_than_transformers() -> None:
    ratios = dict(_rows(_engine("float32")[0], _transformers(torch.float32), "float32"))
    assert min(ratios.values()) >= 1.0

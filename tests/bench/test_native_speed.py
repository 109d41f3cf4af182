"""The native CPU path beside llama.cpp on the same file and beside our own torch path, alternated in one run.

``ENERGYOPT_LLAMA_PYTHON`` names an interpreter that has llama-cpp-python (an environment of its own);
``ENERGYOPT_LLAMA_FILES`` other GGUF files of the same model to time there, such as Q4_0 and BF16, by ``:``.
``BENCH_THREADS=1`` compares CPU seconds, which other processes disturb less; otherwise wall time counts.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes
from engine.batch import Batch, ScheduledRequest
from engine.models import resolve_model
from engine.native.runner import NativeRunner
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.runners import open_runner
from kernels.cpu.library import best_library
from kernels.cpu.speed import measure
from tests.bench.figures import Report

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]
MODEL = "smollm2-135m"
THREADS = int(os.environ.get("BENCH_THREADS", len(os.sched_getaffinity(0))))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", 3))
CONTEXT, PROMPT = 128, 512
BATCHES = (1, 8, 16)
WEIGHT_BYTES = 96.4e6
"""Of Q4_1, read once a step."""
PREFILL_OPERATIONS = 212e6
"""A token, without the head and attention (twice the weights of all layers)."""
Seconds = tuple[float, float]
"""Wall and CPU."""
Timed = Callable[[str, int, int, int], Seconds]


def _show(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a bench exists to print its figures


def _config(**changes: object) -> EngineConfig:
    kv = KvConfig(memory_bytes=Bytes(2**29), prefix_caching=False)
    return EngineConfig(model=MODEL, device="cpu", threads=THREADS, kv=kv).model_copy(update=changes)


def _requests(count: int, tokens: int, room: int) -> list[Request]:
    """Requests of ``tokens`` tokens with blocks for ``room``."""
    blocks = -(-room // 16)
    made = []
    for number in range(count):
        prompt = tuple(5 + (index + number) % 1000 for index in range(tokens))
        request = Request(f"r{number}", prompt, SamplingParams(temperature=0), MonotonicClock().now())
        request.block_ids = list(range(number * blocks, (number + 1) * blocks))
        made.append(request)
    return made


def _ours(runner: NativeRunner | TorchRunner) -> Timed:
    def once(items: list[ScheduledRequest]) -> Seconds:
        wall, cpu = time.perf_counter(), time.process_time()
        runner.run(Batch(tuple(items)))
        return time.perf_counter() - wall, time.process_time() - cpu

    def timed(kind: str, batch: int, tokens: int, steps: int) -> Seconds:
        if kind == "prefill":
            request = _requests(1, tokens, tokens)[0]
            times = [once([ScheduledRequest(request, 0, tokens, True)]) for _ in range(steps)]
        else:
            requests = _requests(batch, tokens + steps, tokens + steps)
            for request in requests:
                runner.run(Batch((ScheduledRequest(request, 0, tokens, False),)))
            times = [once([ScheduledRequest(r, tokens + step, 1, True) for r in requests]) for step in range(steps)]
        return min(wall for wall, _ in times), min(cpu for _, cpu in times)

    return timed


class Llama:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, file: Path) -> None:
        child = Path(__file__).with_name("llama_child.py")
        self._process = subprocess.Popen(
            [python, str(child), str(file), str(THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, kind: str, batch: int, tokens: int, steps: int) -> Seconds:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            f"{kind} {tokens} {steps}\n" if kind == "prefill" else f"{kind} {batch} {tokens} {steps}\n"
        )
        self._process.stdin.flush()
        wall, cpu = map(float, self._process.stdout.readline().split())
        return wall, cpu

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def native() -> Iterator[NativeRunner]:
    _, runner = open_runner(_config(), MonotonicClock())
    assert isinstance(runner, NativeRunner), "no compiler, or no packed model"
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def llamas() -> Iterator[dict[str, Llama]]:
    python = os.environ.get("ENERGYOPT_LLAMA_PYTHON")
    if not python:
        pytest.skip("set ENERGYOPT_LLAMA_PYTHON to an interpreter that has llama-cpp-python")
    files = [resolve_model(MODEL), *map(Path, filter(None, os.environ.get("ENERGYOPT_LLAMA_FILES", "").split(":")))]
    made = {f"llama.cpp {file.stem}": Llama(python, file) for file in files}
    yield made
    for one in made.values():
        one.close()


def _limits() -> tuple[float, float]:
    """Bytes and operations a second that this machine reaches at best, now."""
    found = measure(best_library(), THREADS, 0.3, read_bytes=200_000_000)
    return found.read, found.operations


def _compare(engines: dict[str, Timed], kind: str, batch: int, tokens: int, steps: int) -> dict[str, float]:
    """Print a line an engine; returns how many times longer than the first each takes."""
    reading, products = _limits()
    runs = [{name: timed(kind, batch, tokens, steps) for name, timed in engines.items()} for _ in range(ROUNDS)]
    walls = {name: min(run[name][0] for run in runs) for name in engines}
    cpus = {name: min(run[name][1] for run in runs) for name in engines}
    counted = cpus if THREADS == 1 else walls
    first, made = next(iter(engines)), tokens if kind == "prefill" else batch
    for name in engines:
        wall = walls[name]
        share = PREFILL_OPERATIONS * made / wall / products if kind == "prefill" else WEIGHT_BYTES / wall / reading
        limit = (
            f"{share:4.0%} of {products / 1e9:.0f} Gop/s"
            if kind == "prefill"
            else f"{share:4.0%} of {reading / 1e9:.1f} GB/s"
        )
        _show(
            f"{kind} {made:>3}  {name:<40} {made / wall:7.1f} tok/s wall  {made / cpus[name]:7.1f} by CPU time  "
            f"{limit}  ratio {counted[name] / counted[first]:5.2f}"
        )
    return {name: counted[name] / counted[first] for name in engines}


def test_beside_llama_cpp(native: NativeRunner, llamas: dict[str, Llama], figure: Report) -> None:
    engines: dict[str, Timed] = {"native": _ours(native), **llamas}
    same = f"llama.cpp {resolve_model(MODEL).stem}"
    _show(f"\nSmolLM2-135M Q4_1, {THREADS} threads, context {CONTEXT}, best of {ROUNDS} alternated rounds")
    decode = {batch: _compare(engines, "decode", batch, CONTEXT, 8) for batch in BATCHES}
    prefill = _compare(engines, "prefill", 1, PROMPT, 1)
    for batch, goal in zip(BATCHES, (2, 4, 4), strict=True):
        figure(f"native decode beside llama.cpp, batch {batch}", decode[batch][same], "x", f"at least {goal}")
    figure("native prefill beside llama.cpp", prefill[same], "x", "at least 5")
    assert decode[1][same] >= 2.0
    assert min(decode[8][same], decode[16][same]) >= 4.0
    assert prefill[same] >= 5.0
    for name in llamas.keys() - {same}:
        assert decode[1][name] >= 1.2
        assert min(decode[8][name], decode[16][name], prefill[name]) >= 2.0


def test_beside_our_own_torch_path(native: NativeRunner, figure: Report) -> None:
    _, torch_runner = open_runner(_config(kernels="torch"), MonotonicClock())
    assert isinstance(torch_runner, TorchRunner)
    engines = {"native": _ours(native), "torch": _ours(torch_runner)}
    _show(f"\nSmolLM2-135M Q4_1, {THREADS} threads, context {CONTEXT}, best of {ROUNDS} alternated rounds")
    decode = {batch: _compare(engines, "decode", batch, CONTEXT, 4) for batch in BATCHES}
    prefill = _compare(engines, "prefill", 1, PROMPT, 1)
    torch_runner.close()
    figure("native decode beside our torch path, batch 1", decode[1]["torch"], "x", "at least 2")
    figure("native decode beside our torch path, batch 16", decode[16]["torch"], "x", "at least 1.5")
    figure("native prefill beside our torch path", prefill["torch"], "x", "at least 1.2")
    assert decode[1]["torch"] >= 2.0
    assert decode[16]["torch"] >= 1.5
    assert prefill["torch"] >= 1.2


def test_quality_against_float32(native: NativeRunner, figure: Report) -> None:
    """KL(float32 || native) over 1,024 tokens of text of text, the README's beginning."""
    config = _config(dtype="float32", quantization="none")
    loaded, exact = open_runner(config, MonotonicClock())
    assert isinstance(exact, TorchRunner)
    text = Path(__file__).parents[2].joinpath("README.md").read_text("utf-8")
    tokens = loaded.tokenizer.encode(text)[:1024]
    assert len(tokens) == 1024
    found = {"exact": _all_logits(exact, tokens), "native": _all_logits(native, tokens)}
    exact.close()
    own, other = (functional.log_softmax(found[name], -1) for name in ("exact", "native"))
    divergence = (own.exp() * (own - other)).sum(-1).mean().item()
    losses = [functional.nll_loss(one[:-1], torch.tensor(tokens[1:])).item() for one in (own, other)]
    _show(f"KL(float32 || native) {divergence:.4f}; loss {losses[0]:.4f} and {losses[1]:.4f} over {len(tokens)} tokens")
    figure("native: KL(float32 || native)", divergence, "nat", "at most 0.004")
    assert divergence <= 0.004


def _all_logits(runner: NativeRunner | TorchRunner, tokens: list[int]) -> torch.Tensor:
    """After every token, one at a time."""
    request = Request("r", tuple(tokens), SamplingParams(temperature=0), MonotonicClock().now())
    request.block_ids = list(range(-(-len(tokens) // 16)))
    return torch.cat([runner.logits(Batch((ScheduledRequest(request, at, 1, True),))) for at in range(len(tokens))])

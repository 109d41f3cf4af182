"""Every layout against one rank: the same greedy text, logits within 1e-4; and what the ranks' exchanges cost.

Ranks are threads of this process, over the same wires as processes; SmolLM2 with tp=3 starts processes.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.layouts import describe_layout
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, Runner, ScheduledRequest
from engine.models import load_model, open_model
from engine.parallel.fake import ThreadCrew
from engine.parallel.replicas import Conductor
from engine.parallel.runner import ParallelRunner, processes
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from tests.bench.figures import Report
from tests.engine.model.greedy import greedy
from tests.engine.model.tiny import SPREAD, save_experts, save_tiny

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
Sizes = dict[str, int]
DENSE: list[Sizes] = [
    *({"tp": 1, "pp": 1}, {"tp": 2}, {"tp": 3}, {"pp": 2}, {"pp": 3}, {"tp": 2, "pp": 2}, {"tp": 3, "pp": 2}),
    *({"tp": 4}, {"tp": 4, "dcp": 2}, {"tp": 4, "dcp": 4}, {"tp": 2, "dcp": 2}, {"tp": 2, "dcp": 2, "pp": 3}),
]
SPARSE: list[Sizes] = [
    *({"tp": 2, "ep": 2}, {"tp": 4, "ep": 4}, {"tp": 4, "ep": 4, "dcp": 4}, {"tp": 2, "pp": 2, "ep": 2}, {"tp": 2}),
    *({"dp": 2, "ep": 2}, {"dp": 2, "tp": 2, "ep": 4}, {"dp": 2, "tp": 2, "dcp": 2, "ep": 4}, {"dp": 4, "ep": 4}),
]
SMOLLM2: list[Sizes] = [{"tp": 3}, {"pp": 2}, {"pp": 3}, {"tp": 3, "pp": 2}]
BLOCK = 4


def config_of(model: str, **changes: Any) -> EngineConfig:
    kv = KvConfig(block_tokens=BLOCK, memory_bytes=Bytes(2**27))
    base = {"dtype": "float32", "device": "cpu", "threads": 1, "max_num_seqs": 6, "max_num_batched_tokens": 48}
    return EngineConfig.model_validate({**base, "model": model, "kv": kv, **changes})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], EngineConfig]:
    made: dict[tuple[str, int], EngineConfig] = {}

    def make(kind: str, kv_heads: int) -> EngineConfig:
        if (kind, kv_heads) not in made:
            directory = tmp_path_factory.mktemp(kind)
            save = save_tiny if kind == "dense" else save_experts
            save(directory, **SPREAD, num_key_value_heads=kv_heads)
            made[kind, kv_heads] = config_of(str(directory))
        return made[kind, kv_heads]

    return make


def lengths(unit: int) -> list[int]:
    """Below, at and above every boundary between shards of up to ``unit`` tokens, blocks and chunks."""
    return sorted({1, *(edge + step for edge in (2, BLOCK, unit, 2 * unit, 48) for step in (-1, 0, 1))})


def prompts(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple((11 * at + number) % 250 + 3 for at in range(size)) for number, size in enumerate(sizes)]


def drive(runner: Runner, config: EngineConfig, sizes: Sequence[int], new: int) -> list[list[int]]:
    return greedy(runner, config, prompts(sizes), new)


def one_batch(block_tokens: int) -> Batch:
    items = []
    for number, prompt in enumerate(prompts((48, 9, 17))):
        request = Request(f"r{number}", prompt, SamplingParams(temperature=0), Seconds(0.0))
        request.block_ids = list(range(16 * number, 16 * number + -(-len(request.prompt) // block_tokens)))
        items.append(ScheduledRequest(request, 0, len(request.prompt), True))
    return Batch(tuple(items))


def compare(config: EngineConfig, sizes: Sizes, new: int, hire: Any = ThreadCrew) -> tuple[float, int]:
    """The greatest difference of logits, and how many tokens were equal; fails where one differs."""
    layout = ParallelLayout(**sizes)
    changed = config.model_copy(update={"layout": layout})
    one = TorchRunner(load_model(config), config, MonotonicClock())
    many = ParallelRunner(open_model(changed), changed, MonotonicClock(), hire=hire)
    asked = lengths(BLOCK * layout.dcp)
    try:
        wanted = drive(one, config, asked, new)
        if layout.dp == 1:
            difference = (many.logits(one_batch(many.cache.block_tokens)) - one.logits(one_batch(BLOCK))).abs().max()
            assert drive(many, changed, asked, new) == wanted
        else:
            difference = torch.tensor(float("nan"))
            replicas = Conductor(many).replicas
            with ThreadPoolExecutor(len(replicas)) as pool:
                texts = list(pool.map(lambda replica: drive(replica, changed, asked, new), replicas))
            assert all(text == wanted for text in texts)
    finally:
        many.close()
    assert not difference > 1e-4
    return float(difference), sum(map(len, wanted)) * layout.dp


def say(figure: Report, model: str, sizes: Sizes, difference: float, tokens: int) -> None:
    layout = describe_layout(ParallelLayout(**sizes))
    if not math.isnan(difference):
        figure(f"{model} {layout}: logits beside one rank", difference, "", "at most 1e-4")
    logits = "" if math.isnan(difference) else f", logits within {difference:.1e}"
    sys.stdout.write(f"\n{model} {layout}: {tokens} tokens equal{logits}\n")


@pytest.mark.parametrize("sizes", DENSE, ids=str)
def test_dense(tiny: Callable[[str, int], EngineConfig], sizes: Sizes, figure: Report) -> None:
    config = tiny("dense", 1 if sizes.get("dcp", 1) > 1 or sizes.get("tp") == 4 else 6)
    difference, tokens = compare(config, sizes, 8)
    say(figure, "dense", sizes, difference, tokens)


@pytest.mark.parametrize("sizes", SPARSE, ids=str)
def test_sparse(tiny: Callable[[str, int], EngineConfig], sizes: Sizes, figure: Report) -> None:
    difference, tokens = compare(tiny("sparse", 1), sizes, 8)
    say(figure, "sparse", sizes, difference, tokens)


@pytest.mark.parametrize("sizes", SMOLLM2, ids=str)
def test_smollm2(sizes: Sizes, figure: Report) -> None:
    hire = processes if sizes == {"tp": 3} else ThreadCrew
    difference, tokens = compare(config_of("smollm2-135m"), sizes, 6, hire)
    say(figure, "SmolLM2", sizes, difference, tokens)


def test_smollm2_has_nine_heads_and_three_key_heads() -> None:
    config = config_of("smollm2-135m", layout=ParallelLayout(tp=2))
    with pytest.raises(ConfigError, match="attention heads divide over tp"):
        ParallelRunner(open_model(config), config, MonotonicClock(), hire=ThreadCrew)


def test_an_exchange_through_memory_against_gloo(figure: Report) -> None:
    """Two ranks in processes, sums of 16 x 576 float32, alternated; medians of eight rounds of 150."""
    program = Path(__file__).with_name("collective_parts.py")
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(ran.stdout)
    how = "a core and priority for each" if found["alone"] else "no priority over other processes"
    wall, cpu = (found[f"gloo {kind}"] / found[f"shared {kind}"] for kind in ("wall", "cpu"))
    sys.stdout.write(
        f"\nsum of 16 x 576 float32 over 2 ranks ({how}): {found['shared wall']:.0f} us through memory "
        f"({found['shared cpu']:.0f} of processor), {found['gloo wall']:.0f} us by gloo ({found['gloo cpu']:.0f})\n"
    )
    figure("sum over 2 ranks: gloo beside shared memory, wall", wall, "x", "90 (without Python)")
    figure("sum over 2 ranks: gloo beside shared memory, processor time", cpu, "x")
    assert wall > 1
    assert cpu > 1

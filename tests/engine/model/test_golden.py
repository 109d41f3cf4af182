"""The demo model's greedy text equals what transformers and llama.cpp wrote; the recorder stands beside the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes
from engine.models import LoadedModel, load_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CONFIG = EngineConfig(
    model="smollm2-135m",
    dtype="float32",
    device="cpu",
    threads=1,  # on a shared machine two threads wait for each other
    max_num_seqs=8,
    max_num_batched_tokens=96,
    kv=KvConfig(memory_bytes=Bytes(2**27)),
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(CONFIG)


@pytest.mark.parametrize("record", ["greedy.json", "greedy_llama_cpp.json"])
def test_greedy_text_equals_the_record(
    loaded: LoadedModel,
    driver: Callable[..., list[list[int]]],
    golden: Callable[[str], Any],
    record: str,
) -> None:
    cases = golden(record)["cases"]
    assert len(cases) >= 6
    prompts: list[Sequence[int]] = [case["prompt_ids"] for case in cases]
    assert [loaded.tokenizer.encode(case["prompt"]) for case in cases] == prompts
    got = driver(loaded, CONFIG, prompts, 64)
    for case, output in zip(cases, got, strict=True):
        wanted = case["output_ids"]
        assert output[: len(wanted)] == wanted, case["prompt"]

"""Fixtures: tiny random Llama models on disk beside transformers' own, and a driver from prompts to tokens."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch
from engine.kv.configured import cache_for
from engine.models import LoadedModel, load_model
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler
from engine.step import StepLoop

TINY: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
Driver = Callable[..., list[list[int]]]


def save_tiny(directory: Path, **changes: Any) -> Any:
    """Write a random Llama with a byte-level tokenizer; returns transformers' model of the same weights."""
    torch.manual_seed(changes.pop("seed", 0))
    shard_size = changes.pop("max_shard_size", "50MB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = LlamaForCausalLM(LlamaConfig(**{**TINY, **changes}))
        model.eval()
        for name, value in model.named_parameters():
            if name.endswith(("norm.weight", ".bias")):
                torch.nn.init.normal_(value, mean=1.0 if "norm" in name else 0.0, std=0.2)
        model.save_pretrained(directory, max_shard_size=shard_size)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    return model


def drive(loaded: LoadedModel, config: EngineConfig, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
    """Greedy continuations through scheduler, pages and runner; end-of-text does not stop them."""
    runner = TorchRunner(loaded, config, MonotonicClock())
    scheduler = Scheduler(config, cache_for(config, runner.cache), max_model_len=loaded.max_model_len)
    loop = StepLoop(scheduler, runner, lambda settled, record: None)
    params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(prompt), params, Seconds(float(i))) for i, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add(request)
    while loop.step():
        scheduler.check_integrity()
    return [request.output for request in requests]


class Recorder(TorchRunner):
    """Keeps every row of logits by request and by the number of tokens it follows. ``compute`` replaces the model."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        compute: Callable[[Batch], torch.Tensor] | None = None,
    ) -> None:
        super().__init__(loaded, config, MonotonicClock())
        self.rows: dict[tuple[str, int], torch.Tensor] = {}
        self._compute = compute or super().logits

    def logits(self, batch: Batch) -> torch.Tensor:
        rows = self._compute(batch)
        for item, row in zip((item for item in batch.items if item.sample), rows, strict=True):
            self.rows[item.request.id, item.start + item.count] = row
        return rows


def record(
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    new: int,
    make: Callable[[type[Recorder]], Recorder] | None = None,
) -> tuple[list[Request], dict[tuple[str, int], torch.Tensor]]:
    """Greedy continuations through scheduler, cache and runner, and the logits that were sampled from."""
    runner = make(Recorder) if make else Recorder(load_model(config), config)
    scheduler = Scheduler(config, cache_for(config, runner.cache), max_model_len=256)
    loop = StepLoop(scheduler, runner, lambda settled, record: None)
    params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(prompt), params, Seconds(float(i))) for i, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add(request)
    while loop.step():
        scheduler.check_integrity()
    return requests, runner.rows


def save_family(directory: Path, config: str, model: str, values: dict[str, Any]) -> Any:
    """Write a random model of any of transformers' families, with a tokenizer; returns transformers' model of it."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(transformers, config)(**values)
        made._attn_implementation = "eager"
        oracle = getattr(transformers, model)(made).eval()
        for name, value in [*oracle.named_parameters(), *oracle.named_buffers()]:
            if name.endswith(("norm.weight", ".bias", "sinks", "correction_bias", "_bias")):
                torch.nn.init.normal_(value, mean=1.0 if "norm" in name else 0.0, std=0.3)
        oracle.save_pretrained(directory)
    words = {chr(48 + i): i for i in range(values["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # a token for each character
    tokenizer.save(str(directory / "tokenizer.json"))
    return oracle


@pytest.fixture(scope="session", name="record")
def record_fixture() -> Callable[..., Any]:
    return record


@pytest.fixture(scope="session")
def family_saver() -> Callable[..., Any]:
    return save_family


class Threads:
    """One rank of several that are threads of this process. Satisfies ``Collective``."""

    def __init__(self, rank: int, shared: list[Any], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = len(shared)
        self._shared = shared
        self._barrier = barrier

    def all_gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        self._shared[self.rank] = part
        self._barrier.wait(60)
        parts = [one.clone() for one in self._shared]
        self._barrier.wait(60)
        assert len({one.shape for one in parts}) == 1
        return parts

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(self.all_gather(part))).sum(0)


def in_ranks(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    shared: list[Any] = [None] * size
    barrier = threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [Threads(rank, shared, barrier) for rank in range(size)]))


@pytest.fixture(scope="session", name="in_ranks")
def in_ranks_fixture() -> Callable[[int, Callable[[Threads], Any]], list[Any]]:
    """Runs a function in as many threads as there are ranks, each with its collective; gives what they return."""
    return in_ranks


@pytest.fixture(scope="session")
def tiny_saver() -> Callable[..., Any]:
    return save_tiny


@pytest.fixture(scope="session")
def driver() -> Driver:
    return drive


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-llama")
    save_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_oracle(tiny_directory: Path) -> Any:
    """transformers' model of ``tiny_directory``, with the attention that spells softmax out."""
    load: Any = LlamaForCausalLM.from_pretrained
    return load(tiny_directory, attn_implementation="eager", dtype=torch.float32)


@pytest.fixture(scope="session")
def tiny_config(tiny_directory: Path) -> EngineConfig:
    return EngineConfig(
        model=str(tiny_directory),
        dtype="float32",
        device="cpu",
        threads=1,
        kv=KvConfig(block_tokens=4, memory_bytes=Bytes(2**20)),
    )


@pytest.fixture(scope="session")
def tiny(tiny_config: EngineConfig) -> LoadedModel:
    return load_model(tiny_config)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """Recorded expectations by file name."""

    def read(name: str) -> Any:
        return json.loads((Path(__file__).parents[1] / "golden" / name).read_text("utf-8"))

    return read

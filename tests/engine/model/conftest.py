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
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes
from engine.batch import Batch
from engine.models import LoadedModel, load_model
from engine.request import Request
from engine.runner import TorchRunner
from tests.engine.model import ranks
from tests.engine.model.greedy import greedy, served
from tests.engine.model.tiny import save_experts, save_tiny

Driver = Callable[..., list[list[int]]]


def drive(loaded: LoadedModel, config: EngineConfig, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
    """Greedy continuations on one rank."""
    runner = TorchRunner(loaded, config, MonotonicClock())
    return greedy(runner, config, prompts, new, max_model_len=loaded.max_model_len)


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
    requests = served(runner, config, prompts, new, max_model_len=256)
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


@pytest.fixture(scope="session")
def six_layers(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Six layers, four heads of two key heads, a vocabulary that no number of ranks divides."""
    directory = tmp_path_factory.mktemp("six-layers")
    save_tiny(directory, num_hidden_layers=6, vocab_size=257)
    kv = KvConfig(block_tokens=ranks.BLOCK, memory_bytes=Bytes(2**20))
    base = EngineConfig(model=str(directory), dtype="float32", device="cpu", threads=1, kv=kv)
    return base.model_copy(update={"max_num_seqs": 6, "max_num_batched_tokens": 24})


@pytest.fixture(scope="session")
def six_layers_answers(six_layers: EngineConfig) -> list[list[int]]:
    return ranks.drive(ranks.whole(six_layers), six_layers)


@pytest.fixture(scope="session")
def eight_experts(six_layers: EngineConfig, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Two layers of eight experts, one key head: what lets experts, positions and replicas be spread."""
    directory = tmp_path_factory.mktemp("eight-experts")
    save_experts(directory, vocab_size=257, num_key_value_heads=1)
    return six_layers.model_copy(update={"model": str(directory)})

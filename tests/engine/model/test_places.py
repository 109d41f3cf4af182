"""A model in parts: tensor ranks and pipeline stages give the logits of the whole, and load no more than their part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError
from engine.batch import Batch, ScheduledRequest
from engine.inputs import step_inputs
from engine.model.source import WHOLE, Part
from engine.model.step import Keeps
from engine.models import load_model
from engine.parallel.ports import Alone, Collective, Place
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner

InRanks = Callable[[int, Callable[[Collective], Any]], list[Any]]
PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [99] * 21, [3])


class Lonely(Alone):
    """One of several ranks as far as its part of the weights goes; it is never asked to talk."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size


def batch() -> Batch:
    items = []
    for number, prompt in enumerate(PROMPTS):
        request = Request(f"r{number}", tuple(prompt), SamplingParams(), FakeClock().now())
        request.block_ids = [8 * number + i for i in range(-(-len(prompt) // 4))]
        items.append(ScheduledRequest(request, 0, len(prompt), True))
    return Batch(tuple(items[::-1]))  # the prompt of one token decodes, so it stands first


@pytest.fixture(scope="module", params=[{}, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}])
def config(
    request: pytest.FixtureRequest,
    tiny_config: EngineConfig,
    tiny_saver: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> EngineConfig:
    directory = tmp_path_factory.mktemp("split")
    tiny_saver(directory, vocab_size=257, **request.param)
    return tiny_config.model_copy(update={"model": str(directory)})


@pytest.mark.parametrize("size", [2, 4])
def test_tensor_ranks_give_the_logits_of_one(config: EngineConfig, in_ranks: InRanks, size: int) -> None:
    whole = TorchRunner(load_model(config), config, FakeClock()).logits(batch())

    def logits(ranks: Collective) -> torch.Tensor:
        loaded = load_model(config, Place(tensor=ranks))
        assert loaded.model.keeps[0] == Keeps((2, 1, 16))
        return TorchRunner(loaded, config, FakeClock()).logits(batch())

    parts = in_ranks(size, logits)
    assert all(torch.equal(part, parts[0]) for part in parts)
    assert parts[0].shape == whole.shape
    assert (parts[0] - whole).abs().max() < 1e-4


def test_pipeline_stages_give_the_very_logits_of_one(config: EngineConfig) -> None:
    whole = TorchRunner(load_model(config), config, FakeClock()).logits(batch())
    first, last = (
        TorchRunner(load_model(config, Place(layers=part)), config, FakeClock()) for part in (range(1), range(1, 2))
    )
    assert len(first.pool) == len(last.pool) == 1
    inputs = step_inputs(batch())
    assert torch.equal(last.head(inputs, last.stage(inputs, first.stage(inputs))), whole)


def test_a_rank_reads_its_part_of_the_weights(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def elements(place: Place) -> int:
        source, seen = loaded_source(config.model), list[int]()

        def counted(name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
            value: torch.Tensor = read(name, shape, part)
            if len(shape) == 2:
                seen.append(value.numel())
            return value

        read = source.tensor
        monkeypatch.setattr(type(source), "tensor", lambda self, *args: counted(*args))
        try:
            load_model(config, place)
        finally:
            monkeypatch.undo()
        return sum(seen)

    whole = elements(Place())
    halves = [elements(Place(tensor=Lonely(rank, 2))) for rank in range(2)]
    assert sum(halves) == whole
    assert max(halves) <= whole // 2 + 2 * 64  # vocabulary of odd size
    assert sum(elements(Place(layers=part)) for part in (range(1), range(1, 2))) == whole + tied_table(config)


def loaded_source(path: str) -> Any:
    from engine.model.hf_source import HfSource

    return HfSource(Path(path))


def tied_table(config: EngineConfig) -> int:
    """Both end stages need a tied table."""
    return 257 * 64 if loaded_source(config.model).spec.tied else 0


@pytest.mark.parametrize(
    "place",
    [Place(tensor=Lonely(0, 3)), Place(layers=range(1, 3)), Place(layers=range(0))],
    ids=["heads", "layers", "none"],
)
def test_a_place_that_does_not_divide_the_model_is_refused(tiny_config: EngineConfig, place: Place) -> None:
    with pytest.raises(ConfigError, match="is not allowed"):
        load_model(tiny_config, place)

"""The engine's sampler with the sampling kernel keeps the filters and the promises of its own way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from energyopt.core.units import Seconds
from engine.device_draw import drawer_of
from engine.request import Request, SamplingParams
from engine.sampler import Drawer, Sampler
from engine.sampler import draw as plain_draw
from kernels.dispatch import FUSED, REFERENCE
from kernels.triton_ops import triton_ops

Draw = Callable[..., torch.Tensor]
PARAMS = [
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(temperature=1.5, top_p=0.6),
    SamplingParams(temperature=1.0, min_p=0.3),
    SamplingParams(temperature=2.0, top_k=9, top_p=0.8, min_p=0.1),
]


def ours() -> Drawer:
    drawer = drawer_of(triton_ops().draw)
    assert drawer is not None
    return drawer


QUANTILES = [(i + 0.5) / 8 for i in range(8)]


@pytest.mark.parametrize("params", PARAMS, ids=["top_k", "top_p", "min_p", "all"])
def test_draws_only_what_the_filters_leave(params: SamplingParams, draw: Draw) -> None:
    """The sampler's own way, asked at many quantiles, names every likely token that the filters leave."""
    logits = draw(1, 40)
    many = torch.linspace(0, 1 - 1e-9, 2000).tolist()
    left = set(plain_draw(logits.expand(len(many), -1), [params] * len(many), many))
    drawn = ours()(logits.expand(len(QUANTILES), -1), [params] * len(QUANTILES), QUANTILES)
    assert set(drawn) <= left
    assert len(set(drawn)) > 1


def test_the_seed_decides_and_nothing_else(draw: Draw) -> None:
    logits = draw(1, 40).expand(4, -1)
    params = [SamplingParams(temperature=1.0)] * 4
    together = ours()(logits, params, QUANTILES[:4])
    assert [ours()(logits[:1], params[:1], [quantile])[0] for quantile in QUANTILES[:4]] == together


def test_a_sampler_takes_it_for_rows_that_are_not_greedy(draw: Draw) -> None:
    logits = draw(3, 40)
    kinds = (SamplingParams(temperature=0), SamplingParams(temperature=1.0, top_k=1), SamplingParams(temperature=1.0))
    requests = [Request(f"r{i}", (1,), params, Seconds(0.0)) for i, params in enumerate(kinds)]
    tokens = [sampled.token for sampled in Sampler(5, (), ours()).sample(logits, requests)]
    assert tokens[:2] == logits[:2].argmax(dim=1).tolist()
    assert tokens == [sampled.token for sampled in Sampler(5, (), ours()).sample(logits, requests)]


def test_other_operators_leave_the_sampler_its_own_way() -> None:
    assert drawer_of(FUSED.draw) is None
    assert drawer_of(REFERENCE.draw) is None

"""Sampling: its distributions, and that a row's token is nobody else's business."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.units import Seconds
from engine.penalties import penalize
from engine.request import Request, SamplingParams
from engine.sampler import Sampler, uniform

VOCAB = 50
LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB, unique=True)


def request(name: str = "r", output: Sequence[int] = (), prompt: Sequence[int] = (1, 2, 3), **params: Any) -> Request:
    made = Request(name, tuple(prompt), SamplingParams(**params), Seconds(0.0))
    made.output.extend(output)
    return made


def draw(logits: torch.Tensor, count: int, **params: Any) -> Counter[int]:
    """Tokens that ``count`` seeds give."""
    rows = logits.expand(count, -1)
    return Counter(s.token for s in Sampler(0).sample(rows, [request(seed=i, **params) for i in range(count)]))


def allowed(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """The slow twin: which tokens may be drawn, from the definitions, one after another."""
    probabilities = (logits.double() / params.temperature).softmax(-1)
    order = sorted(range(len(logits)), key=lambda i: -float(probabilities[i]))
    kept = order[: params.top_k] if params.top_k else order
    total = float(probabilities[kept].sum())
    nucleus, mass = [], 0.0
    for token in kept:
        if mass / total < params.top_p - 1e-12:
            nucleus.append(token)
        mass += float(probabilities[token])
    floor = params.min_p * float(probabilities[order[0]])
    return {token for token in nucleus if float(probabilities[token]) >= floor * (1 - 1e-9)}


@given(values=LOGITS, others=st.integers(0, 3), seed=st.integers(0, 2**40), position=st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_a_token_depends_on_its_own_request_only(values: list[float], others: int, seed: int, position: int) -> None:
    row = torch.tensor(values)
    params: dict[str, Any] = {"seed": seed, "temperature": 1.3, "top_p": 0.9}
    alone = Sampler(1).sample(row[None], [request("a", range(position), **params)])[0].token
    crowd = [request(f"o{i}", top_k=i + 1) for i in range(others)]
    rows = torch.cat([torch.randn(others, VOCAB), row[None]])
    # Another engine seed, another name, other neighbours: the seed that was given decides.
    assert Sampler(2).sample(rows, [*crowd, request("b", range(position), **params)])[-1].token == alone


@given(
    values=LOGITS,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, VOCAB + 5),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_a_token_is_one_of_those_that_the_definitions_allow(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    made = request(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    token = Sampler(0).sample(torch.tensor([values]), [made])[0].token
    assert token in allowed(torch.tensor(values), made.params)


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 6, "top_p": 0.8, "min_p": 0.1}],
    ids=str,
)
def test_frequencies_follow_the_distribution(params: dict[str, Any]) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    count = 4000
    seen = draw(logits, count, **params)
    made = SamplingParams(**params)
    weights = (logits.double() / made.temperature).softmax(-1)
    kept = sorted(allowed(logits, made))
    assert set(seen) <= set(kept)
    for token in kept:
        p = float(weights[token] / weights[kept].sum())
        assert abs(seen[token] / count - p) < 5 * math.sqrt(p * (1 - p) / count) + 1e-9


@pytest.mark.parametrize("params", [{"top_p": 0.95}, {"top_k": 50}, {"top_k": 2000, "top_p": 0.99}, {"top_p": 0.5}])
def test_a_large_vocabulary_is_not_cut_short(params: dict[str, Any]) -> None:
    """A flat distribution needs more candidates than the first guess holds."""
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 0.1
    seen = draw(logits, 300, **params)
    assert set(seen) <= allowed(logits, SamplingParams(**params))
    assert len(seen) > (40 if params.get("top_k") == 50 else 200)


def test_positions_and_seeds_draw_afresh_and_repeat() -> None:
    logits = torch.zeros(1, VOCAB)
    tokens = [Sampler(0).sample(logits, [request(seed=7, output=range(n))])[0].token for n in range(40)]
    again = [Sampler(9).sample(logits, [request(seed=7, output=range(n))])[0].token for n in range(40)]
    assert tokens == again
    assert len(set(tokens)) > 15


def test_without_a_seed_the_engine_seed_and_the_id_decide() -> None:
    logits = torch.zeros(1, 5000)

    def token(seed: int, name: str) -> int:
        return Sampler(seed).sample(logits, [request(name)])[0].token

    assert token(0, "a") == token(0, "a")
    assert len({token(0, "a"), token(0, "b"), token(1, "a")}) == 3


def test_uniform_is_uniform() -> None:
    draws = sorted(uniform("seed", i) for i in range(2000))
    assert draws[0] >= 0
    assert draws[-1] < 1
    assert max(abs(value - i / 2000) for i, value in enumerate(draws)) < 0.04  # Kolmogorov-Smirnov, p about 0.003


def test_greedy_is_the_largest_and_top_k_one_agrees() -> None:
    rows = torch.randn(6, VOCAB)
    expected = rows.argmax(-1).tolist()
    assert [s.token for s in Sampler(0).sample(rows, [request(temperature=0)] * 6)] == expected
    assert [s.token for s in Sampler(0).sample(rows, [request(top_k=1)] * 6)] == expected
    mixed = [request(temperature=0), request(top_k=1), request(temperature=1e-6)] * 2
    assert [s.token for s in Sampler(0).sample(rows, mixed)] == expected


def test_logprobs_are_of_the_raw_logits() -> None:
    row = torch.randn(VOCAB)
    raw = row.log_softmax(-1)
    made = request(temperature=3.0, logprobs=4, repetition_penalty=1.5, presence_penalty=1, output=[5, 5])
    sampled = Sampler(0).sample(row[None], [made])[0]
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen == pytest.approx(float(raw[sampled.token]), abs=1e-5)
    values, ids = raw.topk(4)
    assert [i for i, _ in sampled.logprobs.top] == ids.tolist()
    assert [p for _, p in sampled.logprobs.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_logprobs_are_there_if_asked_for_only() -> None:
    rows = torch.randn(3, VOCAB)
    greedy = [request(temperature=0), request(temperature=0, logprobs=0), request(temperature=0, logprobs=2)]
    without, chosen, two = (sampled.logprobs for sampled in Sampler(0).sample(rows, greedy))
    assert without is None
    assert chosen is not None
    assert two is not None
    assert chosen.top == ()
    assert len(two.top) == 2
    assert two.chosen == two.top[0][1]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"presence_penalty": 0.5}, [2.0, 1.5, -1.5, 3.0]),
        ({"frequency_penalty": 0.5}, [2.0, 1.0, -1.5, 3.0]),
        ({"repetition_penalty": 2.0}, [1.0, 1.0, -2.0, 3.0]),
        ({"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": -1.0}, [1.0, 1.0, -1.5, 3.0]),
    ],
)
def test_penalties_by_hand(params: dict[str, Any], expected: list[float]) -> None:
    """Prompt [0]; output [1, 1, 2]: repetition counts both, presence and frequency the output alone."""
    row = torch.tensor([2.0, 2.0, -1.0, 3.0])
    before = row.clone()
    made = request(prompt=[0], output=[1, 1, 2], **params)
    assert penalize(row, made).tolist() == pytest.approx(expected)
    assert torch.equal(row, before)


def test_a_penalty_changes_a_greedy_choice() -> None:
    row = torch.tensor([[1.0, 0.9, 0.0]])
    assert Sampler(0).sample(row, [request(temperature=0, output=[0])])[0].token == 0
    assert Sampler(0).sample(row, [request(temperature=0, output=[0], presence_penalty=0.5)])[0].token == 1


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(0).sample(torch.empty(0, VOCAB), []) == []

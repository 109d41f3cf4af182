"""The native step equals the twin, however a text is cut into steps and blocks and whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from engine.batch import Batch, BlockCopy, ScheduledRequest
from engine.native.runner import NativeRunner
from engine.request import Request, SamplingParams
from kernels.cpu import twin

if TYPE_CHECKING:
    from tests.engine.native.conftest import Tiny

LENGTHS = (1, 7, 16, 33, 150)
CLOSE, FLIPPED = 1e-5, 0.15
"""Shares of the logits' spread. Rows are equal but for the order of sums; now and then that moves an activation across
the border between two codes, which shows in the row's logits."""


def texts(lengths: Sequence[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]


def scattered(prompts: Sequence[Sequence[int]], block_tokens: int) -> list[Request]:
    """Requests whose blocks lie in no order."""
    needed = [-(-len(prompt) // block_tokens) for prompt in prompts]
    blocks = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(1)).tolist()
    made = []
    for number, (prompt, count) in enumerate(zip(prompts, needed, strict=True)):
        request = Request(f"r{number}", tuple(prompt), SamplingParams(temperature=0), FakeClock().now())
        request.block_ids, blocks = blocks[:count], blocks[count:]
        made.append(request)
    return made


def logits(runner: NativeRunner, requests: Sequence[Request], chunks: Sequence[int]) -> list[list[torch.Tensor]]:
    """Logits after every chunk; request i takes chunks of ``chunks[i]``."""
    seen: list[list[torch.Tensor]] = [[] for _ in requests]
    while any(request.remaining for request in requests):
        items = [
            ScheduledRequest(request, request.num_computed, min(size, request.remaining), True)
            for request, size in zip(requests, chunks, strict=True)
            if request.remaining
        ]
        for item, row in zip(items, runner.logits(Batch(tuple(items))), strict=True):
            item.request.num_computed += item.count
            seen[requests.index(item.request)].append(row)
    return seen


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Most rows are close, and none is far."""
    error = (found - wanted).abs().amax(-1) / wanted.std()
    if len(error) > 4:  # what follows an activation that moved differs with it
        assert error.median() <= CLOSE
    assert error.max() <= FLIPPED


def assert_equal(tiny: Tiny, runner: NativeRunner, prompts: Sequence[list[int]], chunks: Sequence[int]) -> None:
    found = logits(runner, scattered(prompts, runner.cache.block_tokens), chunks)
    wanted = []
    for prompt, chunk in zip(prompts, chunks, strict=True):
        ends = [min(at + chunk, len(prompt)) - 1 for at in range(0, len(prompt), chunk)]
        wanted.append(twin.forward(tiny.twin, prompt)[ends])
    assert_near(torch.cat([torch.stack(rows) for rows in found]), torch.cat(wanted))


@pytest.mark.parametrize("block_tokens", [1, 16, 24])
@pytest.mark.parametrize("chunks", [(500,) * 5, (1, 3, 16, 5, 37)], ids=["whole", "mixed"])
def test_equal_to_the_twin(tiny: Tiny, block_tokens: int, chunks: Sequence[int]) -> None:
    runner = tiny.runner(kv={"block_tokens": block_tokens, "memory_bytes": 2**23})
    assert_equal(tiny, runner, texts(LENGTHS), chunks)
    runner.close()


@pytest.mark.parametrize("options", [{"biases": True}, {"tied": False}, {"bits": 4}], ids=str)
def test_every_form_of_weights(make_tiny: Callable[..., Tiny], options: dict[str, bool]) -> None:
    tiny = make_tiny(**options)
    runner = tiny.runner()
    assert_equal(tiny, runner, texts(LENGTHS), (1, 3, 16, 33, 64))
    runner.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_cut_gives_the_same_bits(any_runner: NativeRunner, data: st.DataObject) -> None:
    """A row does not hang on its neighbours: prefix hits, preemption and batching change nothing at all."""
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    chunks = [data.draw(st.integers(1, length)) for length in lengths]
    together = logits(any_runner, scattered(texts(lengths), 16), chunks)
    for prompt, rows in zip(texts(lengths), together, strict=True):
        alone = logits(any_runner, scattered([prompt], 16), [len(prompt)])[0]
        assert torch.equal(rows[-1], alone[-1])


@pytest.fixture(scope="module")
def any_runner(tiny: Tiny) -> Iterator[NativeRunner]:
    runner = tiny.runner()
    yield runner
    runner.close()


def test_what_an_earlier_request_left_does_not_count(tiny: Tiny) -> None:
    """Values are read in pairs, so the one behind the last token is read too: even NaN must not get through."""
    runner = tiny.runner()
    first, second = scattered(texts((64, 64)), 16)
    runner.logits(Batch((ScheduledRequest(first, 0, 64, True), ScheduledRequest(second, 0, 64, True))))
    nan = torch.tensor(float("nan")).bfloat16().view(torch.int16).item()
    for length in (1, 3, 16, 17):
        prompt = texts((length,))[0]
        request = scattered([prompt], 16)[0]
        runner.pool[:, request.block_ids] = int(nan)
        found = torch.stack(logits(runner, [request], [500])[0])
        assert_near(found, twin.forward(tiny.twin, prompt)[-1:])
    runner.close()


def test_a_copied_block_is_read_like_its_source(tiny: Tiny) -> None:
    runner = tiny.runner()
    prompt = texts((40,))[0]
    request = scattered([prompt], 16)[0]
    request.block_ids = [0, 1, 2]
    runner.logits(Batch((ScheduledRequest(request, 0, 39, True),)))
    wanted = runner.logits(Batch((ScheduledRequest(request, 39, 1, True),)))
    request.block_ids = [5, 1, 7]
    found = runner.logits(Batch((ScheduledRequest(request, 39, 1, True),), (BlockCopy(0, 5), BlockCopy(2, 7))))
    assert torch.equal(found, wanted)
    runner.close()


def test_a_prompt_is_scored_with_the_logits_of_its_rows(tiny: Tiny) -> None:
    runner = tiny.runner()
    prompt = texts((20,))[0]
    (request,) = scattered([prompt], 16)
    request.params = SamplingParams(temperature=0, prompt_logprobs=1)
    for start, count, scored in ((0, 7, 7), (7, 13, 12)):
        batch = Batch((ScheduledRequest(request, start, count, scored < count, scored=scored),))
        rows = runner.logits(batch)
        twins = twin.forward(tiny.twin, prompt[: start + count])[start:]
        assert (rows - twins).abs().max() <= FLIPPED * twins.std()
        scores = runner.run(batch).scores[0]
        wanted = torch.log_softmax(rows, dim=-1)[range(scored), prompt[start + 1 : start + 1 + scored]]
        assert [score.chosen for score in scores] == pytest.approx(wanted.tolist(), abs=1e-4)
        request.scores += scores
    runner.close()


def test_guesses_have_logits_of_their_own(tiny: Tiny) -> None:
    runner = tiny.runner()
    prompt = texts((20,))[0]
    request = scattered([[*prompt, 0, 0, 0]], 16)[0]
    request.prompt = tuple(prompt)
    rows = runner.logits(Batch((ScheduledRequest(request, 0, 22, True, draft=(9, 8)),)))
    wanted = twin.forward(tiny.twin, [*prompt, 9, 8])[-3:]
    assert rows.shape == wanted.shape
    assert_near(rows, wanted)
    runner.close()

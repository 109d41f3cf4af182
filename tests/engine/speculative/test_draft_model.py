"""A draft model guesses, and the engine writes what it writes without: the plain engine is the twin of every test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, SpeculativeConfig, parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, CacheShape, StepResult
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.kv.layout import RecurrentState, SlidingWindow
from engine.request import Request, SamplingParams
from engine.sampler import Sampler
from engine.speculative.assembly import drafts_for
from engine.speculative.companion import check_goes_back, check_same_tokens, draft_config, shared_memory
from engine.speculative.draft_model import DraftModel
from engine.speculative.drafts import Drafts
from engine.speculative.ports import FixedDepth
from engine.structured.fake import FakeGuides
from engine.structured.ports import GuideSpec

VOCAB = 8
WINDOW = (SlidingWindow(4, 9),)


class Watched(FakeRunner):
    """A draft's runner that keeps its batches."""

    def __init__(self, shape: CacheShape, **options: Any) -> None:
        super().__init__(shape, **options)
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> StepResult:
        self.batches.append(batch)
        return super().run(batch)


def drafting(
    *, blocks: int = 200, groups: Any = (), budget: int = 32, context: int = 4096, **runner: Any
) -> tuple[DraftModel, Watched]:
    made = Watched(CacheShape(blocks, 4, Bytes(1), groups), **runner)
    return DraftModel(made, vocabulary=VOCAB, context=context, budget=budget), made


JOBS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
        st.integers(1, 25),
        st.sampled_from((0.0, 0.7, 3.0)),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=20, deadline=None)
@given(
    JOBS,
    st.integers(11, 60),
    st.integers(3, 60),
    st.sampled_from(("same", "other", "window")),
    st.integers(1, 8),
    st.data(),
)
def test_same_tokens_whatever_the_draft_knows_and_has_room_for(
    make_rig: Callable[..., Any],
    jobs: list[Any],
    num_blocks: int,
    places: int,
    kind: str,
    depth: int,
    data: st.DataObject,
) -> None:
    said = {"vocabulary": range(VOCAB)} if kind == "other" else {"random_vocab": VOCAB}
    draft, runner = drafting(
        blocks=places, groups=WINDOW if kind == "window" else (), budget=data.draw(st.integers(1, 40)), **said
    )
    outputs: list[Any] = []
    for drafts in (None, Drafts(draft, FixedDepth(depth), 8)):
        rig = make_rig(num_blocks=num_blocks, max_num_seqs=3, random_vocab=VOCAB, drafts=drafts, eos_ids=frozenset({7}))
        requests = []
        for number, (prompt, most, temperature) in enumerate(jobs):
            params = SamplingParams(max_tokens=min(most, 4 * num_blocks - len(prompt)), temperature=temperature)
            requests.append(Request(str(number), tuple(prompt), params, Seconds(float(number))))
            rig.scheduler.add(requests[-1])
        rig.drain()
        outputs.append([(request.output, request.finish_reason) for request in requests])
    assert outputs[0] == outputs[1]
    assert len(draft) == 0, "nothing is kept of who has ended"
    assert draft._shadows.pool.num_available == places
    assert all(batch.num_tokens <= 40 + 3 for batch in runner.batches)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_a_draft_that_knows_the_distribution_guesses_what_is_drawn(
    make_rig: Callable[..., Any], temperature: float
) -> None:
    draft, runner = drafting(random_vocab=VOCAB)
    drafts = Drafts(draft, FixedDepth(3), 8)
    rig = make_rig(random_vocab=VOCAB, drafts=drafts)
    for number in range(3):
        params = SamplingParams(max_tokens=41, temperature=temperature, frequency_penalty=0.2)
        rig.scheduler.add(Request(str(number), (1, 2, number), params, Seconds(float(number))))
    rig.drain()
    assert drafts.counts.accepted == drafts.counts.drafted == 3 * 30
    assert len(rig.batches) == 1 + 10
    assert len(runner.batches) == 30, "all requests guess together: three passes for each step"


def test_one_seed_is_one_number_and_so_the_draws_stay_the_models() -> None:
    """The draft's distribution is another one: the tokens of 4,000 seeds are as frequent as the model says."""
    model = torch.tensor([[0.0, 1.0, 0.5, -1.0, 2.0, 0.2, -0.3, 1.5]] * 2)
    small = torch.tensor([[0.5, 1.5, 0.0, -0.5, 1.0, 0.0, -0.8, 1.2]])
    want, seen, true = torch.softmax(model[0], dim=-1), Counter[int](), 0
    for seed in range(4000):
        request = Request("r", (1,), SamplingParams(seed=seed), Seconds(0.0))
        (guess,) = Sampler(0).sample(small, [request])
        (got,) = Sampler(0).sample(model, [request], [(guess.token,)])
        seen[got.token] += 1
        true += len(got.more)
    chi = sum((seen[token] - 4000 * float(p)) ** 2 / (4000 * float(p)) for token, p in enumerate(want))
    assert chi < 29.9, "one in ten thousand by chance"
    by_chance = float((want * torch.softmax(small[0], dim=-1)).sum())
    assert true / 4000 > 2 * by_chance, "the same number draws the same token far more often than two numbers would"


def test_a_long_prompt_is_read_in_parts_beside_others_guesses(make_rig: Callable[..., Any]) -> None:
    draft, runner = drafting(random_vocab=VOCAB, budget=16)
    drafts = Drafts(draft, FixedDepth(2), 8)
    rig = make_rig(random_vocab=VOCAB, drafts=drafts, max_num_batched_tokens=64)
    rig.add([1, 2], max_tokens=30, name="short")
    rig.add([number % VOCAB for number in range(50)], max_tokens=30, name="long")
    rig.drain()
    read = [item.count for batch in runner.batches for item in batch.items if item.request.id == "long"]
    assert max(batch.num_tokens for batch in runner.batches) <= 16
    assert read[:3] == [13, 14, 14]
    assert drafts.counts.accepted == drafts.counts.drafted > 30


def test_a_step_begins_with_its_guesses_and_the_costs_of_reading_are_not_learned(make_rig: Callable[..., Any]) -> None:
    class Noted(FixedDepth):
        def __init__(self) -> None:
            super().__init__(2)
            self.steps: list[float] = []

        def stepped(self, rows: int, start: Seconds, end: Seconds) -> None:
            self.steps.append(end - start)

    policy = Noted()
    draft, runner = drafting(random_vocab=VOCAB, step_time=0.5)
    rig = make_rig(random_vocab=VOCAB, drafts=Drafts(draft, policy, 8))
    runner._clock = rig.clock
    rig.add([1] * 12, max_tokens=7)
    rig.drain()
    times = [record.end - record.start for record in rig.records]
    assert times == pytest.approx([0.01, 1.01, 1.01])
    assert policy.steps == pytest.approx([1.01]), "not the step in which the draft read the prompt"


def test_what_a_draft_cannot_read_it_does_not_guess(make_rig: Callable[..., Any]) -> None:
    for prompt, context in (([1, VOCAB], 4096), ([1] * 30, 33)):
        draft, runner = drafting(random_vocab=VOCAB, context=context)
        drafts = Drafts(draft, FixedDepth(2), 8)
        rig = make_rig(random_vocab=VOCAB, drafts=drafts)
        rig.add(prompt, max_tokens=9)
        rig.drain()
        assert drafts.counts.drafted == (0 if VOCAB in prompt else 2)
        assert max((item.start + item.count for batch in runner.batches for item in batch.items), default=0) <= context


async def _ask(front: EngineFront, **params: Any) -> list[int]:
    outputs = front.generate([97, 98], SamplingParams(max_tokens=30, **params), request_id="r")
    return [token async for output in outputs for token in output.token_ids]


def test_a_guided_answer_is_guessed_in_its_form() -> None:
    shape, answers = CacheShape(64, 4, Bytes(1)), []
    for model in (None, "draft"):
        config = EngineConfig(
            model="fake",
            kv=KvConfig(block_tokens=4),
            speculative_config=model and SpeculativeConfig(method="draft_model", model=model, adaptive=False),
        )
        runner = FakeRunner(shape, random_vocab=260)
        runner.draft = draft = DraftModel(FakeRunner(shape, random_vocab=260), vocabulary=260, context=99, budget=64)
        front = EngineFront(
            config, runner, FakeTokenizer(), max_model_len=90, clock=MonotonicClock(), guides=FakeGuides()
        )
        guide = GuideSpec("choice", '["ababababab", "abbbabba", "babababa"]')
        answers.append(asyncio.run(_ask(front, guide=guide, seed=3)))
        counts = front.stats().drafts
        front.close()
    assert answers[0] == answers[1]
    assert counts is not None
    assert counts.accepted == counts.drafted > 4
    assert runner.closed
    assert len(draft) == 0


def test_it_sleeps_and_reads_anew(make_rig: Callable[..., Any]) -> None:
    draft, runner = drafting(random_vocab=VOCAB)
    request = Request("r", (1, 2, 3), SamplingParams(max_tokens=9, temperature=0), Seconds(0.0), output=[4])
    before = draft.propose_all([(request, 3)])
    assert draft.sleep() == 200
    assert runner.asleep
    draft.wake()
    assert draft.propose_all([(request, 3)]).drafts == before.drafts
    draft.forget(request)
    draft.forget(request)
    draft.close()
    assert runner.closed


class _Words:
    """A tokenizer as far as drafts compare it."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.vocab_size = words, len(words)

    def token_bytes(self, token: int) -> bytes:
        return self.words[token].encode()

    def token_text(self, token: int) -> str:
        return self.words[token]


def test_what_cannot_be_a_draft_is_refused_in_a_sentence() -> None:
    same: Any = _Words(["a", "b"])
    check_same_tokens("m", same, same)
    for words, message in ((["a"], "it has 1 of them where that has 2"), (["a", "c"], "token 1 is 'c' where .* 'b'")):
        other: Any = _Words(words)
        with pytest.raises(ConfigError, match=message):
            check_same_tokens("m", other, same)
    with pytest.raises(ConfigError, match="'m' is not possible: it has a recurrent state"):
        check_goes_back("m", CacheShape(8, 4, Bytes(1), (RecurrentState(4),)))
    runner = FakeRunner()
    with pytest.raises(ConfigError, match="'m' was not opened beside"):
        drafts_for(parse_config(SpeculativeConfig, {"model": "m"}), runner, None)
    for wrong in ({"method": "draft_model"}, {"method": "ngram", "model": "m"}):
        with pytest.raises(ConfigError, match="draft_model needs model"):
            parse_config(SpeculativeConfig, wrong)
    assert parse_config(SpeculativeConfig, {"model": "m"}).method == "draft_model"


def test_both_pools_take_what_one_would_and_hold_the_same_tokens() -> None:
    target, draft = CacheShape(100, 16, Bytes(1600)), CacheShape(7, 8, Bytes(200))
    mine, given = shared_memory(target, draft)
    assert mine + given == 100 * 1600
    assert mine // 1600 * 16 == given // 200 * 8 == 1280
    config = EngineConfig(model="big", max_model_len=64, kv=KvConfig(block_tokens=8), idle_sleep=Seconds(9.0))
    own = draft_config(config, "small")
    assert (own.model, own.max_model_len, own.idle_sleep, own.kv.block_tokens) == ("small", None, None, 8)

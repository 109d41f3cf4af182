"""Guessing changes when tokens come, never which: every test here has the plain engine as its twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, SpeculativeConfig
from energyopt.core.errors import ConfigError
from energyopt.core.records import FinishReason, Phase
from energyopt.core.units import Bytes, Seconds
from engine.batch import CacheShape, draft_limit
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.kv.layout import RecurrentState, SlidingWindow
from engine.request import Request, SamplingParams
from engine.sampler import Sampler
from engine.speculative.assembly import drafts_for
from engine.speculative.drafts import Drafts
from engine.speculative.ngram import MOST_TOKENS, NgramProposer
from engine.speculative.ports import FixedDepth
from engine.structured.fake import FakeGuides
from engine.structured.ports import GuideSpec

VOCAB = 8
"""So few tokens that guesses from the text come true now and then."""


def ngrams(depth: int = 3) -> Drafts:
    return Drafts(NgramProposer(longest=3, shortest=1), FixedDepth(depth), limit=8)


class Wild:
    """Guesses anything; satisfies ``Proposer``."""

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        return tuple((len(request.output) * 7 + place) % VOCAB for place in range(most))

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


JOBS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
        st.integers(1, 30),
        st.sampled_from((0.0, 0.7, 3.0)),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(JOBS, st.integers(9, 60), st.booleans(), st.sampled_from(("ngram", "wild", "window")), st.integers(1, 8))
def test_same_tokens_under_preemption_caching_and_ends(
    make_rig: Callable[..., Any], jobs: list[Any], num_blocks: int, prefix_caching: bool, kind: str, depth: int
) -> None:
    outputs: list[Any] = []
    groups = (SlidingWindow(4, 9),) if kind == "window" else ()
    for drafts in (None, Drafts(Wild(), FixedDepth(depth), 8) if kind == "wild" else ngrams(depth)):
        rig = make_rig(
            num_blocks=num_blocks,
            max_num_seqs=3,
            prefix_caching=prefix_caching,
            random_vocab=VOCAB,
            drafts=drafts,
            max_model_len=4 * num_blocks // 2,
            eos_ids=frozenset({7}),
            groups=groups,
        )
        requests = []
        for number, (prompt, most, temperature) in enumerate(jobs):
            prompt = prompt[: max(1, 2 * num_blocks - most)]
            most = max(1, min(most, 2 * num_blocks - len(prompt)))
            params = SamplingParams(
                max_tokens=most, temperature=temperature, stop_token_ids=(6,), frequency_penalty=0.1
            )
            requests.append(Request(str(number), tuple(prompt), params, Seconds(float(number))))
            rig.scheduler.add(requests[-1])
        rig.drain()
        outputs.append([(request.output, request.finish_reason, len(request.token_times)) for request in requests])
        assert rig.scheduler.counters.output_tokens == sum(len(request.output) for request in requests)
    assert outputs[0] == outputs[1]


def test_guesses_save_steps_and_are_counted(make_rig: Callable[..., Any]) -> None:
    plain, fast = make_rig(say=[1, 2, 3, 4]), make_rig(say=[1, 2, 3, 4], drafts=ngrams())
    for rig in (plain, fast):
        rig.add([9], max_tokens=60)
        rig.drain()
    counts = fast.scheduler.drafts.counts
    assert len(plain.batches) == 60
    assert len(fast.batches) < 25
    assert counts.accepted == 60 - len(fast.batches)
    assert counts.accepted <= counts.drafted <= 3 * counts.drafts
    assert sum(counts.by_place.values()) == counts.accepted
    assert counts.by_place[0] >= counts.by_place[1] >= counts.by_place[2] > 0
    assert {share.phase for record in fast.records[1:] for share in record.shares} == {Phase.DECODE}
    assert len(NgramProposer()) == 0 == len(fast.scheduler.drafts._proposer), "nothing is kept of who has ended"


def test_no_guess_makes_anybody_wait(make_rig: Callable[..., Any]) -> None:
    """The budget goes to decodes first, and blocks are taken from nobody."""
    rig = make_rig(max_num_seqs=8, max_num_batched_tokens=8, say=[5], drafts=ngrams(8), num_blocks=40)
    for _ in range(8):
        rig.add([5, 5, 5], max_tokens=12)
    rig.drain()
    assert max(batch.num_tokens for batch in rig.batches) == 8
    assert rig.scheduler.counters.preemptions == 0


class _Texts:
    """Both engines, asked the same."""

    def __init__(self, **runner: Any) -> None:
        self.fronts = []
        for speculative in (None, SpeculativeConfig(adaptive=False, num_speculative_tokens=5)):
            config = EngineConfig(
                model="fake", max_num_seqs=4, kv=KvConfig(block_tokens=4), speculative_config=speculative
            )
            made = FakeRunner(CacheShape(200, 4, Bytes(1)), **runner)
            self.fronts.append(
                EngineFront(
                    config, made, FakeTokenizer(), max_model_len=300, clock=MonotonicClock(), guides=FakeGuides()
                )
            )

    async def ask(self, prompt: Sequence[int], **params: Any) -> list[Any]:
        answers = []
        for front in self.fronts:
            text, tokens, logprobs, last = "", list[int](), 0, None
            options = SamplingParams(**{"seed": 3, **params})
            async for output in front.generate(prompt, options, request_id="r"):
                text, last = text + output.text, output
                tokens += output.token_ids
                logprobs += len(output.logprobs)
            assert last is not None
            assert last.record is not None
            assert last.record.output_tokens == len(tokens) == len(last.record.token_times)
            answers.append((text, tokens, logprobs, last.finish_reason))
        return answers

    def close(self) -> None:
        for front in self.fronts:
            front.close()


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"max_tokens": 40}, FinishReason.LENGTH),
        ({"max_tokens": 40, "stop": ("cdef",)}, FinishReason.STOP),
        ({"max_tokens": 40, "stop": ("efa", "d"), "logprobs": 2}, FinishReason.STOP),
        ({"max_tokens": 40, "stop_token_ids": (101,), "min_tokens": 9}, FinishReason.STOP),
    ],
)
async def test_texts_stops_and_logprobs_are_the_same(params: dict[str, Any], reason: FinishReason) -> None:
    texts = _Texts(say=b"abcdef")
    plain, fast = await texts.ask(b"abcdefabcdefabc", **params)
    assert plain == fast
    assert plain[3] is reason
    stats = texts.fronts[1].stats()
    assert stats.drafts is not None
    assert stats.drafts.accepted > 0
    assert stats.output_tokens == texts.fronts[0].stats().output_tokens == len(plain[1])
    assert texts.fronts[0].stats().drafts is None
    texts.close()


async def test_guided_answers_keep_their_form() -> None:
    texts = _Texts(random_vocab=260)
    for seed in range(6):
        guide = GuideSpec("choice", '["ababababab", "abababba", "babababa"]')
        plain, fast = await texts.ask(b"abababababababbaba", max_tokens=40, guide=guide, seed=seed)
        assert plain == fast
        assert plain[0] in ("ababababab", "abababba", "babababa")
    counts = texts.fronts[1].stats().drafts
    assert counts is not None
    assert counts.accepted > 0
    texts.close()


def test_sampled_tokens_have_the_distribution_of_the_model() -> None:
    """Of 4,000 seeds with a guess each, the tokens are as frequent as the softmax says: chi square, 7 degrees."""
    logits = torch.tensor([[0.0, 1.0, 0.5, -1.0, 2.0, 0.2, -0.3, 1.5]] * 2)
    want = torch.softmax(logits[0], dim=-1)
    first, second = Counter[int](), Counter[int]()
    for seed in range(4000):
        request = Request("r", (1,), SamplingParams(seed=seed), Seconds(0.0))
        (got,) = Sampler(0).sample(logits, [request], [(4,)])
        first[got.token] += 1
        second.update(more.token for more in got.more)
    for seen in (first, second):
        total = sum(seen.values())
        chi = sum((seen[token] - total * float(p)) ** 2 / (total * float(p)) for token, p in enumerate(want))
        assert chi < 29.9, "one in ten thousand by chance"
    assert first[4] == sum(second.values()), "the guess came true as often as the model says its token"


def test_a_state_cannot_go_back_so_nothing_is_guessed() -> None:
    assert draft_limit(FakeRunner()) == 16
    recurrent = CacheShape(8, 4, Bytes(1), (RecurrentState(4),))
    assert draft_limit(FakeRunner(recurrent)) == 0


HISTORY = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@settings(deadline=None)
@given(HISTORY, HISTORY, st.integers(1, 4), st.integers(1, 3))
def test_a_guess_is_what_followed_the_longest_run_last(
    prompt: list[int], output: list[int], most: int, longest: int
) -> None:
    proposer = NgramProposer(longest=longest, shortest=1)
    request = Request("r", tuple(prompt), SamplingParams(max_tokens=99), Seconds(0.0))
    for token in [None, *output]:
        request.output += [] if token is None else [token]
        text, want = [*prompt, *request.output], tuple[int, ...]()
        for size in range(min(longest, len(text) - 1), 0, -1):
            starts = [at for at in range(len(text) - size) if text[at : at + size] == text[-size:]]
            if starts:
                after = text[starts[-1] + size :]
                want = tuple((after * most)[:most])
                break
        assert proposer.propose(request, most) == want
    proposer.forget(request)
    proposer.forget(request)
    assert len(proposer) == 0


def test_a_long_text_is_remembered_in_part_and_in_bounded_memory() -> None:
    proposer = NgramProposer(longest=3, shortest=2)
    request = Request("r", (1, 2, 3, 4, 5), SamplingParams(max_tokens=10**6), Seconds(0.0))
    assert proposer.propose(request, 2) == ()
    for number in range(6):
        request.output += [7, 8 + number, *range(100, 100 + MOST_TOKENS // 2), 7, 8 + number]
        assert proposer.propose(request, 2) == (100, 101)
        request.output += [1, 2]
        assert proposer.propose(request, 1) == ((3,) if number == 0 else (7,))
    (seen,) = proposer._seen.values()
    assert MOST_TOKENS <= len(seen.tokens) <= len(seen._tokens) <= 2 * MOST_TOKENS


@pytest.mark.parametrize("groups", [(), (RecurrentState(4),)])
def test_a_runner_that_verifies_no_guess_is_not_given_a_wish_that_it_drops(groups: tuple[Any, ...]) -> None:
    class Plain:
        cache = CacheShape(8, 4, Bytes(1), groups)

    wish, runner = SpeculativeConfig(), FakeRunner(CacheShape(8, 4, Bytes(1), groups)) if groups else Plain()
    with pytest.raises(ConfigError, match="speculative_config is not possible here"):
        drafts_for(wish, runner, None)  # type: ignore[arg-type]
    assert drafts_for(None, runner, None) is None  # type: ignore[arg-type]

"""What is done to logits before a token is chosen: against the definition, row by row."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.units import Seconds
from engine.adjust import adjust, adjusts
from engine.batch import Sampled
from engine.request import Request, SamplingParams
from engine.sampler import Sampler, accepted
from engine.structured.fake import FakeGuide

VOCAB = 8
NEVER = float("-inf")


def request(output: tuple[int, ...] = (), **params: object) -> Request:
    made = SamplingParams(**{"max_tokens": 99, **params})  # type: ignore[arg-type]
    return Request("r", (1, 2), made, Seconds(0.0), output=list(output))


def test_biases_are_added_and_the_input_stays() -> None:
    row = torch.zeros(VOCAB)
    biased = adjust(row, request(logit_bias=((1, 2.5), (3, -100.0))), ())
    assert biased.tolist() == [0, 2.5, 0, -100, 0, 0, 0, 0]
    assert row.tolist() == [0] * VOCAB


def test_nothing_ends_an_answer_that_is_too_short() -> None:
    ends, row = (7,), torch.zeros(VOCAB)
    short = request((4,), min_tokens=3, stop_token_ids=(5,))
    assert adjust(row, short, ends).tolist() == [0, 0, 0, 0, 0, NEVER, 0, NEVER]
    assert adjust(row, short, ends, ahead=(4,)).tolist()[7] == NEVER
    assert adjust(row, short, ends, ahead=(4, 4)).tolist() == [0] * VOCAB
    assert adjust(row, request((4,), min_tokens=3, ignore_eos=True), ends).tolist() == [0] * VOCAB


def test_a_form_that_is_complete_ends_an_answer_that_is_too_short() -> None:
    """The guide allows the end and nothing else, and the least length forbids it: something must be left to choose."""
    short, row = request((97,), min_tokens=9), torch.zeros(260)
    short.guide = FakeGuide([b"a"], 256, 260, b"a")
    assert adjust(row, short, (256,)).argmax() == 256
    short.guide = FakeGuide([b"a", b"ab"], 256, 260, b"a")
    assert adjust(row, short, (256,)).argmax() == ord("b")
    everything = request(min_tokens=2, stop_token_ids=tuple(range(VOCAB)))
    assert adjust(torch.zeros(VOCAB), everything, ()).isfinite().all()


def test_who_wants_nothing_is_not_asked_to_wait() -> None:
    assert not adjusts(request((1, 2), min_tokens=2))
    assert adjusts(request((1,), min_tokens=2))
    assert adjusts(request(logit_bias=((0, 1.0),)))
    assert adjusts(request(presence_penalty=0.5))


def test_guesses_count_for_penalties() -> None:
    rows = torch.zeros(1, VOCAB)
    rows[0, 3], rows[0, 4] = 1.0, 0.9
    one = request((), temperature=0, presence_penalty=0.5)
    assert adjust(rows[0], one, ())[3] == 1.0
    assert adjust(rows[0], one, (), ahead=(3,))[3] == 0.5


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=5)


@given(TOKENS, TOKENS, st.integers(0, 2**31), st.sampled_from((0.0, 1.0)), st.integers(0, 6))
def test_drafts_change_when_tokens_come_never_which(
    output: list[int], draft: list[int], seed: int, temperature: float, min_tokens: int
) -> None:
    """Slow twin: one token at a time, from logits that depend on the whole history."""

    def logits(history: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash(tuple(history)) % 2**31)
        return 3 * torch.rand(VOCAB, generator=generator)

    params = {"temperature": temperature, "seed": seed, "frequency_penalty": 0.3, "min_tokens": min_tokens}
    sampler, known = Sampler(0, ends=(7,)), list(output)
    made = request(tuple(output), **params)
    rows = torch.stack([logits([*output, *draft[:ahead]]) for ahead in range(len(draft) + 1)])
    (got,) = sampler.sample(rows, [made], [tuple(draft)])
    for token in (got.token, *(more.token for more in got.more)):
        alone = request(tuple(known), **params)
        assert sampler.sample(logits(known)[None], [alone])[0].token == token
        known.append(token)
    true = known[len(output) : -1]
    assert true == draft[: len(true)]
    assert len(true) == len(draft) or known[-1] != draft[len(true)]


def test_a_draft_is_taken_up_to_its_first_error() -> None:
    chosen = [Sampled(token) for token in (3, 4, 5)]
    assert accepted(chosen, (3, 9)) == Sampled(3, more=(Sampled(4),))
    assert accepted(chosen, (3, 4)) == Sampled(3, more=(Sampled(4), Sampled(5)))
    assert accepted(chosen, (9, 4)) == Sampled(3)


def test_mixed_batches_keep_their_rows_apart() -> None:
    rows = torch.eye(VOCAB)[[0, 1, 2, 3]] * 5
    plain, drafted = request(temperature=0), request(temperature=0)
    first, second = Sampler(0).sample(rows, [drafted, plain], [(0, 1), ()])
    assert (first.token, [more.token for more in first.more]) == (0, [1, 2])
    assert second == Sampled(3)

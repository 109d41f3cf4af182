"""Bad requests are named in one sentence, with the value and the limit."""

from __future__ import annotations

import pytest

from energyopt.core.errors import PromptTooLongError, RequestError
from energyopt.core.units import Bytes
from engine.batch import CacheShape
from engine.request import SamplingParams
from engine.validate import check_request

CACHE = CacheShape(num_blocks=4, block_tokens=4, bytes_per_block=Bytes(1))


@pytest.mark.parametrize(
    ("prompt", "params", "kind", "param", "message"),
    [
        ([], SamplingParams(), RequestError, "prompt", "The prompt is empty: it must have at least 1 token."),
        ([5, 10], SamplingParams(), RequestError, "prompt", "Token id 10 is not in the vocabulary: ids are 0 to 9."),
        ([5, -1], SamplingParams(), RequestError, "prompt", "Token id -1 is not in the vocabulary: ids are 0 to 9."),
        (
            [1],
            SamplingParams(stop=("a", "")),
            RequestError,
            "stop",
            "A stop string is empty: each must have at least 1 character.",
        ),
        (
            [1],
            SamplingParams(stop_token_ids=(3, 10**30)),
            RequestError,
            "stop_token_ids",
            f"stop_token_ids holds {10**30}: ids in the vocabulary are 0 to 9.",
        ),
        (
            [1] * 13,
            SamplingParams(max_tokens=1),
            PromptTooLongError,
            "prompt",
            "The prompt has 13 tokens: the context holds 12.",
        ),
        (
            [1] * 10,
            SamplingParams(max_tokens=3),
            PromptTooLongError,
            "max_tokens",
            "The prompt has 10 tokens and max_tokens is 3, 13 together: the context holds 12.",
        ),
    ],
)
def test_refusals(
    prompt: list[int], params: SamplingParams, kind: type[RequestError], param: str, message: str
) -> None:
    with pytest.raises(kind) as caught:
        check_request(prompt, params, max_model_len=12, vocab_size=10, cache=CACHE)
    assert caught.value.message == message
    assert caught.value.param == param


def test_limits_are_inclusive() -> None:
    check_request([0, 9], SamplingParams(max_tokens=10), max_model_len=12, vocab_size=10, cache=CACHE)
    check_request([0] * 7, SamplingParams(max_tokens=10), max_model_len=99, vocab_size=10, cache=CACHE)
    with pytest.raises(PromptTooLongError, match="takes 5 KV blocks of 4 tokens: the pool has 4"):
        check_request([0] * 8, SamplingParams(max_tokens=10), max_model_len=99, vocab_size=10, cache=CACHE)

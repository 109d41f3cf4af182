"""Which requests can be served at all: checks that need no state, so any thread may call them."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.errors import PromptTooLongError, RequestError

from .batch import CacheShape
from .kv.layout import Layout
from .request import SamplingParams


def check_request(
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    max_model_len: int,
    vocab_size: int,
    cache: CacheShape,
    scores: bool = True,
) -> None:
    """Raise RequestError or PromptTooLongError, naming value and limit, unless the request can be served.

    ``scores`` is whether the runner tells how likely the tokens of a prompt are.
    """
    if params.prompt_logprobs is not None and not scores:
        raise RequestError("This engine does not tell log-probabilities of a prompt.", param="prompt_logprobs")
    if not prompt:
        raise RequestError("The prompt is empty: it must have at least 1 token.", param="prompt")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise RequestError(f"Token id {wrong} is not in the vocabulary: ids are 0 to {vocab_size - 1}.", param="prompt")
    outside = [token for token in params.stop_token_ids if not 0 <= token < vocab_size]
    if outside:
        raise RequestError(
            f"stop_token_ids holds {str(outside[0])[:40]}: ids in the vocabulary are 0 to {vocab_size - 1}.",
            param="stop_token_ids",
        )
    unknown = [token for token, _ in params.logit_bias if not 0 <= token < vocab_size]
    if unknown:
        raise RequestError(
            f"logit_bias holds {str(unknown[0])[:40]}: ids in the vocabulary are 0 to {vocab_size - 1}.",
            param="logit_bias",
        )
    if "" in params.stop:
        raise RequestError("A stop string is empty: each must have at least 1 character.", param="stop")
    check_length(len(prompt), params.max_tokens, max_model_len)
    check_fits(len(prompt), params.max_tokens, cache)


def check_length(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    """Raise PromptTooLongError unless prompt and answer fit into the context."""
    if prompt_tokens > max_model_len:
        raise PromptTooLongError(
            f"The prompt has {prompt_tokens} tokens: the context holds {max_model_len}.", param="prompt"
        )
    if prompt_tokens + max_tokens > max_model_len:
        raise PromptTooLongError(
            f"The prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, {prompt_tokens + max_tokens} "
            f"together: the context holds {max_model_len}.",
            param="max_tokens",
        )


def check_fits(prompt_tokens: int, max_tokens: int, cache: CacheShape) -> None:
    """Raise PromptTooLongError if the KV pool could not hold the request even alone.

    The last token sampled is never fed back, so it needs no place.
    """
    tokens = prompt_tokens + max(max_tokens, 1) - 1
    whole = -(-tokens // cache.block_tokens)  # as the layout of one plain group would say
    needed = Layout(cache.groups).peak_blocks(tokens, chunk=1) if cache.groups else whole
    if needed > cache.num_blocks:
        raise PromptTooLongError(
            f"The prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, which takes {needed} KV blocks of "
            f"{cache.block_tokens} tokens: the pool has {cache.num_blocks}.",
            param="max_tokens",
        )

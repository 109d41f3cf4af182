"""Logits to tokens.

A row's token depends on its logits, its request's parameters and one uniform number drawn from (seed, output
position): not on its neighbours in the batch, not on preemption. Order of operations: penalties, temperature, top-k,
top-p, min-p, as in vLLM; log-probabilities are of the raw logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from .batch import Sampled
from .penalties import has_penalties, penalize
from .request import Request, TokenLogprobs

_CANDIDATES = (64, 1024)
"""Sizes of the sorted head of a distribution that are tried before all of it is sorted: 64 covers usual top_k, 1024
usual top_p; sorting 49k values takes 4 ms a row, finding 1024 of them under 1."""


class Sampler:
    """Stateless but for ``seed``, which with a request's id seeds the requests that bring no seed of their own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[Sampled]:
        """One token per row of ``logits`` (rows, vocab), float32, for the request of the same index."""
        greedy = logits.argmax(dim=-1).tolist()
        plain = [request.params.greedy and not has_penalties(request.params) for request in requests]
        if all(plain) and all(request.params.logprobs is None for request in requests):
            return [Sampled(token) for token in greedy]
        tokens = [
            token if simple else self._choose(row, request)
            for token, simple, row, request in zip(greedy, plain, logits, requests, strict=True)
        ]
        return [
            Sampled(token, _logprobs(row, token, request.params.logprobs))
            for token, row, request in zip(tokens, logits, requests, strict=True)
        ]

    def _choose(self, row: torch.Tensor, request: Request) -> int:
        row = penalize(row, request)
        if request.params.greedy:
            return int(row.argmax())
        return choose(row, request, uniform(self._seed_of(request), len(request.output)))

    def _seed_of(self, request: Request) -> str:
        given = request.params.seed
        return f"own {given}" if given is not None else f"engine {self._seed} {request.id}"


def uniform(seed: str, position: int) -> float:
    """A number in [0, 1) that depends on its arguments alone: a counter-based generator (BLAKE2b as the mixer)."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def choose(row: torch.Tensor, request: Request, u: float) -> int:
    """The token at quantile ``u`` of the distribution that ``request.params`` makes of ``row`` (vocab,)."""
    params = request.params
    scaled = row.double() / params.temperature
    if params.top_k == 0 and params.top_p >= 1:
        probabilities = scaled.softmax(dim=-1)
        return _at_quantile(probabilities * (probabilities >= params.min_p * probabilities.max()), u)
    log_total = scaled.logsumexp(dim=-1)
    for size in (*_CANDIDATES, row.numel()):
        if kept := _head(scaled, log_total, size, request):
            ids, probabilities = kept
            return int(ids[_at_quantile(probabilities, u)])
    raise AssertionError("the whole distribution always suffices")


def _head(
    scaled: torch.Tensor, log_total: torch.Tensor, size: int, request: Request
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Ids and weights of the tokens kept, most likely first; None if ``size`` candidates do not decide it."""
    params, vocab = request.params, scaled.numel()
    size = min(size, vocab)
    if params.top_k > size < vocab:
        return None
    values, ids = scaled.topk(min(params.top_k or size, size))
    # top-p counts within what top-k left; without top-k, within the whole vocabulary.
    weights = values.softmax(dim=-1) if params.top_k else (values - log_total).exp()
    before = weights.cumsum(dim=-1) - weights
    if not params.top_k and size < vocab and bool(before[-1] + weights[-1] < params.top_p):
        return None
    kept = (before < params.top_p) & (weights >= params.min_p * weights[0])
    return ids, weights * kept


def _at_quantile(weights: torch.Tensor, u: float) -> int:
    """Index at which the running sum of ``weights`` first exceeds ``u`` times their total."""
    sums = weights.cumsum(dim=-1)
    index = int(torch.searchsorted(sums, sums[-1] * u, right=True))
    if index < weights.numel():
        return index
    return int(weights.nonzero()[-1])  # rounding put the quantile on the very end


def _logprobs(row: torch.Tensor, token: int, alternatives: int | None) -> TokenLogprobs | None:
    if alternatives is None:
        return None
    total = row.logsumexp(dim=-1)
    values, ids = row.topk(min(alternatives, row.numel()))
    top = tuple(zip(ids.tolist(), (values - total).tolist(), strict=True))
    return TokenLogprobs(float(row[token] - total), top)

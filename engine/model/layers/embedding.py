"""Both ends of a model over its vocabulary, of which each tensor rank holds a share."""

from __future__ import annotations

import torch
from torch.nn import functional

from kernels.linear import Linear

from .loader import Loader
from .split import share, span


class Embedding:
    """Token ids (rows,) to hidden states (rows, hidden) in the activations' type."""

    def __init__(self, load: Loader, table: torch.Tensor, vocab: int) -> None:
        """``table`` holds this rank's share of the rows."""
        self._table = table
        self._ranks = load.place.tensor
        self._mine = share(vocab, self._ranks)
        self._activations = load.activations

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._ranks.size == 1:
            return functional.embedding(tokens, self._table).to(self._activations)
        local = tokens - self._mine.start
        foreign = (local < 0) | (local >= len(self._mine))
        found = functional.embedding(local.masked_fill(foreign, 0), self._table).to(self._activations)
        return self._ranks.all_reduce(found.masked_fill(foreign.unsqueeze(1), 0))


class Head:
    """Hidden states (rows, hidden) to logits (rows, vocab), float32; every rank gets all of them."""

    def __init__(self, load: Loader, product: Linear, vocab: int) -> None:
        """``product`` is with this rank's share of the rows."""
        self._product = product
        self._ranks = load.place.tensor
        self._vocab = vocab

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._product(hidden).float()
        if self._ranks.size == 1:
            return logits
        # Shares differ by at most one column, and what is gathered must be equal in shape.
        widest = -(-self._vocab // self._ranks.size)
        parts = self._ranks.all_gather(functional.pad(logits, (0, widest - logits.shape[1])))
        sizes = [
            self._vocab * (rank + 1) // self._ranks.size - self._vocab * rank // self._ranks.size
            for rank in range(self._ranks.size)
        ]
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], dim=1)


def load_ends(
    load: Loader, vocab: int, hidden: int, *, first: bool, last: bool, tied: bool
) -> tuple[Embedding | None, Head | None]:
    """The embedding of a first pipeline stage and the output projection of a last one; ``tied`` ones share a table."""
    shape, part = (vocab, hidden), (span(share(vocab, load.place.tensor)),)
    table = load.raw("model.embed_tokens.weight", shape, part) if first or tied else None
    embedding = Embedding(load, table.to(load.device, load.dtype), vocab) if first and table is not None else None
    if not last:
        return embedding, None
    head = load.rows("model.embed_tokens.weight" if tied else "lm_head.weight", shape, part, table if tied else None)
    return embedding, Head(load, head, vocab)

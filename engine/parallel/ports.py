"""What a model needs to know when several ranks compute it together: whom to talk to, and which part is its own.

A rank alone is the case of one: ``Alone`` copies nothing, so a layer is written once, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch


class Collective(Protocol):
    """Ranks that compute one thing together. Every rank calls the same methods in the same order.

    A call that waits for a rank that is gone raises EngineError; it never waits for ever. Sums are taken in the order
    of the ranks, so that every rank gets the same bits.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's ``part`` (equal shapes and types); it may be ``part`` itself, overwritten."""
        ...

    def all_gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Every rank's ``part``, by rank; shapes are equal."""
        ...


class Alone:
    """The collective of one rank. Satisfies ``Collective``."""

    rank = 0
    size = 1

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def all_gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        return (part,)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands in its engine.

    ``tensor`` ranks split heads, columns and rows of each layer; where there are more of them than key/value heads,
    neighbours hold copies of one. ``experts`` ranks hold whole experts each. ``context`` ranks, a part of the tensor
    ranks that hold the same key/value heads, split the positions of each sequence. ``data`` ranks stand at the same
    place in other replicas, which have requests of their own and share the experts. ``layers`` are the layers of this
    pipeline stage, None for all of them: the first stage embeds, the last one norms and makes logits.
    """

    tensor: Collective = field(default_factory=Alone)
    experts: Collective = field(default_factory=Alone)
    context: Collective = field(default_factory=Alone)
    data: Collective = field(default_factory=Alone)
    layers: range | None = None

"""What a layer is to a model: what all layers of one step share, and what each keeps of a sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from kernels.pages import Pages

from .layers.rotary import Angles
from .states import StateMoves


@dataclass(frozen=True, slots=True)
class Keeps:
    """What a layer keeps for each token: ``token`` is its shape, (2, kv_heads, head_dim) for keys and values.

    It is read for the last ``window`` positions only (0: for all).
    """

    token: tuple[int, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class StateKeeps:
    """A layer that keeps one state for everything before a position: ``parts`` are the shapes of its tensors, which
    are float32 whatever the model is."""

    parts: tuple[tuple[int, ...], ...]
    family: Literal["mamba", "gated_delta", "kda"]

    @property
    def elements(self) -> int:
        return sum(map(math.prod, self.parts))


Kept = Keeps | StateKeeps


@dataclass(frozen=True, slots=True)
class Paged:
    """Where the step's rows lie for one layer: ``pool`` (blocks, block_tokens, *token)."""

    pool: torch.Tensor
    pages: Pages


@dataclass(frozen=True, slots=True)
class Stateful:
    """Where the states of the step's sequences lie for one layer: each of ``parts`` is (blocks, *part)."""

    parts: tuple[torch.Tensor, ...]
    moves: StateMoves


Slot = Paged | Stateful


@dataclass(frozen=True, slots=True)
class Step:
    """Of one batch: rotary angles of its rows, of each kind that the model has."""

    angles: tuple[Angles, ...]


class Layer(Protocol):
    """One layer of a model on one rank."""

    @property
    def keeps(self) -> Kept: ...

    def __call__(self, hidden: torch.Tensor, step: Step, slot: Slot) -> torch.Tensor:
        """The hidden states (rows, hidden) behind the layer; ``hidden`` may be overwritten. ``slot`` is of the kind
        that ``keeps`` says."""
        ...


def paged(slot: Slot) -> Paged:
    """For a layer that keeps tokens: the slot it is handed is of that kind."""
    assert isinstance(slot, Paged)
    return slot


def stateful(slot: Slot) -> Stateful:
    """For a layer that keeps a state."""
    assert isinstance(slot, Stateful)
    return slot

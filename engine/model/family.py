"""A family of models: how its configuration is read and how its layers are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .hf_config import HfConfig
from .layers.loader import Loader
from .layers.rotary import Rotary
from .spec import DecoderSpec
from .step import Layer

S = TypeVar("S", bound=DecoderSpec)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a stack of layers is made of. ``rotaries`` are the angles that its layers choose from by index;
    embeddings are multiplied by ``embedding_scale``, and ``norm_shift`` is added to the weights of the last norm."""

    make_layer: Callable[[int], Layer]
    rotaries: tuple[Rotary, ...]
    embedding_scale: float = 1.0
    norm_shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """``read`` takes ``config.json`` and whether the files hold an output projection of its own; it raises ModelError.

    ``architectures`` and ``model_types`` are the names that Hugging Face gives the family; ``formats`` are the
    ``quant_method`` of weights that it can read, beside plain ones.
    """

    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    read: Callable[[HfConfig, bool], S]
    build: Callable[[S, Loader], Blueprint]
    formats: tuple[str, ...] = ()

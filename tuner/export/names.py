"""Names of models that another engine, on another machine, can find; and in words where one is not."""

from __future__ import annotations

import re

from energyopt.core.errors import ConfigError, NotFoundError

from ..simulator.models import load_model_spec

_OWN = {"smollm2-135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "16-bit weights, where this project's file has 4 bits")}
"""Names that only this project knows: where the same model is published, and how that differs."""
_REGISTRY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def published(model: str) -> tuple[str, str | None]:
    """The name for another engine, and what a reader has to know about it; None where it is the same model by name."""
    if model in _OWN:
        name, difference = _OWN[model]
        return name, f"{model} is a name of energyopt: {name} is the same model with {difference}."
    if is_path(model):
        return model, f"The model {model} is a path of the machine that was tuned: it must be at the same place there."
    if _REGISTRY.fullmatch(model):
        return model, None
    known = _described(model)
    if known is not None:
        return known, f"{model} is a name of energyopt's simulator: {known} is published."
    return model, f"{model} is no name of a public registry: put the folder of the model in its place."


def is_path(model: str) -> bool:
    """Whether a model is named by where it lies."""
    return model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf")


def plain(model: str) -> str:
    """The name itself. Raises ConfigError for one that a command line would take for an option."""
    if model.startswith("-"):
        raise ConfigError(f"model = {model[:80]!r} looks like an option on a command line: write ./{model[:80]}.")
    return model


def _described(model: str) -> str | None:
    try:
        name = load_model_spec(model).name
    except (ConfigError, NotFoundError):
        return None
    return name if _REGISTRY.fullmatch(name) else None

"""Which implementation of the operators a model uses: decided once, by name, device and what the model asks, before any
weight is loaded."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import experts, fused, fused_delta, linear, reference
from .choices import NOTHING, Choices
from .demand import ANYTHING, Demand
from .demand import obstacle as unmet
from .ops import Ops as Ops
from .platform import UnsupportedDeviceError, arch_of, triton_fault, triton_release
from .twins import gated_delta as plain_delta
from .twins import moe as plain_moe


class KernelUnavailableError(ValueError):
    """An implementation was asked for that does not exist or cannot run here; the message lists those that can."""


REFERENCE = Ops(
    "reference",
    make_linear=linear.make_plain_linear,
    rms_norm=reference.rms_norm,
    add_rms_norm=reference.add_rms_norm,
    rope=reference.rope,
    rope_store=reference.rope_store,
    swiglu=reference.swiglu,
    store_kv=reference.store_kv,
    attention=reference.attention,
    latent_attention=reference.latent_attention,
    route=plain_moe.route,
    make_experts=experts.make_plain_experts,
    delta=plain_delta.gated_delta,
)
FUSED = Ops(
    "torch",
    make_linear=linear.make_linear,
    rms_norm=fused.rms_norm,
    add_rms_norm=fused.add_rms_norm,
    rope=fused.rope,
    rope_store=fused.rope_store,
    swiglu=fused.swiglu,
    store_kv=fused.store_kv,
    attention=fused.attention,
    latent_attention=fused.latent_attention,
    route=plain_moe.route,
    make_experts=experts.make_experts,
    delta=fused_delta.gated_delta,
)


@dataclass(frozen=True, slots=True)
class Implementation:
    """``obstacle(device, demand)`` says why it cannot compute such a model on ``device`` (None: it can);
    ``load(choices)`` gives its operators, after that was asked; ``automatic(device)`` tells whether ``auto`` may take
    it there."""

    name: str
    obstacle: Callable[[torch.device, Demand], str | None]
    load: Callable[[Choices], Ops]
    automatic: Callable[[torch.device], bool]


def _no_obstacle(device: torch.device, demand: Demand) -> str | None:
    return None


def _triton_obstacle(device: torch.device, demand: Demand) -> str | None:
    if (fault := triton_fault()) is not None:
        return fault
    release = triton_release() or ""
    if tuple(int(part) for part in re.findall(r"\d+", release)[:2]) < OLDEST_TRITON:
        return f"triton {release} is too old: it must be {'.'.join(map(str, OLDEST_TRITON))} or newer"
    if device.type == "cpu" and not importlib.import_module("triton").knobs.runtime.interpret:
        return "a CPU runs it only in Triton's interpreter (TRITON_INTERPRET=1)"
    try:
        return unmet(demand, arch_of(device))
    except UnsupportedDeviceError as error:
        return str(error)


def _load_triton(choices: Choices) -> Ops:
    """Imported only here: without a GPU nobody needs Triton, and importing it takes half a second."""
    ops: Ops = importlib.import_module(f"{__package__}.triton_ops").triton_ops(choices)
    return ops


IMPLEMENTATIONS = (
    Implementation("triton", _triton_obstacle, _load_triton, lambda device: device.type != "cpu"),
    Implementation("torch", _no_obstacle, lambda choices: FUSED, lambda device: True),
    Implementation("reference", _no_obstacle, lambda choices: REFERENCE, lambda device: False),
)
"""In the order in which ``auto`` tries them."""

CPU = torch.device("cpu")
OLDEST_TRITON = (3, 5)
"""Older releases lack what the kernels use; as in pyproject.toml."""


def select_ops(name: str, device: torch.device = CPU, choices: Choices = NOTHING, demand: Demand = ANYTHING) -> Ops:
    """The operators called ``name`` on ``device`` for a model that asks ``demand``; ``auto`` is the fastest that can.
    ``choices`` are the launches that were measured there.

    Raises KernelUnavailableError for a name that is unknown or cannot run.
    """
    if name == "auto":
        able = (i for i in IMPLEMENTATIONS if i.automatic(device) and i.obstacle(device, demand) is None)
        return next(able).load(choices)
    found = next((implementation for implementation in IMPLEMENTATIONS if implementation.name == name), None)
    problem = "is unknown" if found is None else found.obstacle(device, demand)
    if found is None or problem is not None:
        names = [i.name for i in IMPLEMENTATIONS if i.obstacle(device, demand) is None]
        said = problem if found is None else f"cannot run on {device.type}: {problem}"
        raise KernelUnavailableError(f"kernels = {name!r} {said}; here can run: {', '.join(['auto', *names])}.")
    return found.load(choices)


def available(device: torch.device = CPU, demand: Demand = ANYTHING) -> dict[str, str | None]:
    """Every implementation, and why it cannot run on ``device`` (None: it can)."""
    return {implementation.name: implementation.obstacle(device, demand) for implementation in IMPLEMENTATIONS}

"""A mixture of experts: a router, the experts that it chooses for each token, and those that all tokens share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from engine.parallel.rows import gather_rows
from kernels.ops import ExpertWeights, Scoring

from .loader import Loader
from .mlp import GatedMlp
from .split import share, span

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """The numbers of one mixture.

    Of ``experts`` with ``width`` inner columns each, ``top_k`` are chosen by the softmax or sigmoid of the router's
    scores, within the best ``top_groups`` of ``groups`` equal groups. Their weights are made to add up to one
    (``renormalize``) and multiplied by ``scale``. ``bias``: a correction is added for choosing only. ``shared`` is the
    width of the expert that all tokens go through (None: there is none).
    """

    experts: int
    top_k: int
    width: int
    scoring: Scoring = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    bias: bool = False
    shared: int | None = None

    def problems(self) -> str | None:
        """What makes these numbers impossible, or None."""
        if not 0 < self.top_k <= self.experts:
            return f"{self.top_k} of {self.experts} experts cannot be chosen"
        if self.experts % self.groups or self.top_groups > self.groups:
            return f"{self.top_groups} of {self.groups} groups of {self.experts} experts cannot be chosen"
        if self.top_k > self.experts // self.groups * self.top_groups:
            return f"{self.top_groups} groups have fewer than {self.top_k} experts"
        return None


class LoadExperts(Protocol):
    """Reads the weights of ``experts``, the ``inner`` columns of each: ``up`` has gates, then ups as its outputs."""

    def __call__(self, experts: range, inner: range, /) -> ExpertWeights: ...


@dataclass(frozen=True, slots=True)
class Names:
    """How a family calls the parts of a mixture: ``gate``, ``up`` and ``down`` of an expert, the router's correction
    and the shared expert."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    router: str = "gate"
    correction: str = "gate.e_score_correction_bias"
    shared: str = "shared_experts"


PLAIN_NAMES = Names()


class SparseMoe:
    """Expert ranks hold whole experts; without them, tensor ranks hold a share of the columns of each.

    ``shared_gate``: the shared expert is multiplied by a sigmoid of its own.
    """

    def __init__(
        self,
        load: Loader,
        name: str,
        hidden: int,
        spec: MoeSpec,
        names: Names = PLAIN_NAMES,
        *,
        experts: LoadExperts | None = None,
        router_bias: bool = False,
        shared_gate: bool = False,
    ) -> None:
        self._spec, self._ops, self._place = spec, load.ops, load.place
        router = f"{name}.{names.router}"
        self._router = load.raw(router + ".weight", (spec.experts, hidden)).to(load.device, torch.float32)
        self._router_bias = load.raw(router + ".bias", (spec.experts,)).to(load.device).float() if router_bias else None
        self._correction = None
        if spec.bias:
            self._correction = load.raw(f"{name}.{names.correction}", (spec.experts,)).to(load.device).float()
        whole = load.place.experts.size > 1
        self._mine = share(spec.experts, load.place.experts)
        inner = range(spec.width) if whole else share(spec.width, load.place.tensor)
        read = experts or each_expert(load, name + ".experts", hidden, spec, names)
        self._experts = load.ops.make_experts(read(self._mine, inner), load.dtype, load.device)
        self._reduce = load.place.experts.all_reduce if whole else load.place.tensor.all_reduce
        self._shared = GatedMlp(load, f"{name}.{names.shared}", hidden, spec.shared) if spec.shared else None
        gate = load.vector(f"{name}.{names.shared}_gate.weight", (1, hidden)) if shared_gate else None
        self._shared_gate = gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows, own = gather_rows(self._place.data, x)
        weights, ids = self._route(functional.linear(rows.float(), self._router, self._router_bias))
        if self._spec.scale != 1.0:
            weights = weights * self._spec.scale
        if self._place.experts.size > 1:
            foreign = (ids < self._mine.start) | (ids >= self._mine.stop)
            weights, ids = weights.masked_fill(foreign, 0), (ids - self._mine.start).masked_fill(foreign, 0)
        out = self._reduce(self._experts(rows, weights, ids))[own]
        if self._shared is None:
            return out
        shared = self._shared(x)
        if self._shared_gate is not None:
            shared = shared * torch.sigmoid(functional.linear(x, self._shared_gate))
        return out + shared

    def _route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spec = self._spec
        if spec.groups == 1:
            return self._ops.route(logits, spec.top_k, spec.scoring, self._correction, renormalize=spec.renormalize)
        return route_in_groups(logits, spec, self._correction)


def route_in_groups(
    logits: torch.Tensor, spec: MoeSpec, correction: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose groups, then experts within them (DeepSeek-V2, 2024; DeepSeek-V3, 2024).

    A group counts as much as its best expert or, where a correction is added (V3), as its two best together. Weights
    (rows, top_k) float32 and ids int32.
    """
    scores = logits.sigmoid() if spec.scoring == "sigmoid" else logits.softmax(-1)
    rank = scores if correction is None else scores + correction
    grouped = rank.view(len(rank), spec.groups, -1)
    best = grouped.amax(-1) if correction is None else grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(spec.top_groups, dim=-1).indices, True)
    ids = grouped.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(1).topk(spec.top_k, dim=-1).indices
    weights = scores.gather(1, ids)
    if spec.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.int()


def each_expert(load: Loader, name: str, hidden: int, spec: MoeSpec, names: Names = PLAIN_NAMES) -> LoadExperts:
    """Experts that the source has one by one: ``name.7.gate_proj.weight``."""

    def read(experts: range, inner: range) -> ExpertWeights:
        columns: Mapping[str, tuple[slice, ...]] = {"in": (span(inner),), "out": (slice(None), span(inner))}
        ups, downs = [], []
        for expert in experts:
            own = f"{name}.{expert}."
            both = [
                load.raw(f"{own}{part}.weight", (spec.width, hidden), columns["in"]) for part in (names.gate, names.up)
            ]
            ups.append(torch.cat(both))
            downs.append(load.raw(f"{own}{names.down}.weight", (hidden, spec.width), columns["out"]))
        return ExpertWeights(torch.stack(ups), torch.stack(downs), load.ops.swiglu)

    return read

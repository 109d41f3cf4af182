"""What one iteration asks of one rank: bytes, operations, exchanges. Pure counting, no rates, no seconds.

Sources: the arithmetic of a decoder layer. Weights are read once an iteration; experts are read if at least one
token of the batch meets them (uniform routing, ``1 - (1 - k/E)^tokens``); the cache is read once a decoding sequence
and once a prefill chunk. Two costs are of how engines do it. Every rank handles the rows of all routed tokens, those of
experts it does not hold too: published kernel times grow with the tokens by the same amount at any expert split.
Block-scaled 8-bit grouped products align each held expert to ``ALIGN`` rows and compute the padding.
"""

from __future__ import annotations

from typing import NamedTuple

from energyopt.core.config import ParallelLayout

from .models import WEIGHT_BYTES, ModelSpec, attention_bytes

KV_BYTES = 2.0
ACT_BYTES = 2.0
ALIGN = 128
"""Rows to which a block-scaled 8-bit grouped product (DeepGEMM, as vLLM calls it) aligns every expert it holds."""


class StepShape(NamedTuple):
    """A batch as the hardware sees it (a tuple, because one is made for every step).

    ``decodes`` sequences with ``decode_context`` cached tokens in sum; ``prefills`` chunks with ``prefill_tokens`` in
    sum, whose attention covers ``prefill_pairs`` (query, key) pairs and reads ``prefill_context`` cached tokens.
    ``sampled`` sequences need logits.
    """

    decodes: float
    decode_context: float
    prefills: float = 0.0
    prefill_tokens: float = 0.0
    prefill_pairs: float = 0.0
    prefill_context: float = 0.0
    sampled: float = 0.0

    @property
    def tokens(self) -> float:
        return self.decodes + self.prefill_tokens

    @property
    def sequences(self) -> float:
        return self.decodes + self.prefills

    def divided(self, parts: int) -> StepShape:
        """One of ``parts`` equal shares of the batch."""
        return StepShape(
            self.decodes / parts,
            self.decode_context / parts,
            self.prefills / parts,
            self.prefill_tokens / parts,
            self.prefill_pairs / parts,
            self.prefill_context / parts,
            self.sampled / parts,
        )


class Work(NamedTuple):
    """Demands of one iteration on one rank. ``wide`` operations are 16-bit, ``narrow`` ones run on 8-bit units.

    ``routed_bytes`` is one pass over the routed tokens' activations; ``logits`` counts the vocabulary entries that
    sampling looks at.
    """

    linear_bytes: float
    linear_wide: float
    linear_narrow: float
    expert_bytes: float
    expert_wide: float
    expert_narrow: float
    attention_bytes: float
    attention_flops: float
    routed_bytes: float
    logits: float
    link_bytes: float
    collectives: float


class WorkModel:
    """Counts the work of ``spec`` under ``layout``; coefficients are prepared once, a step costs a few products.

    Heads beyond the cache's are replicated (GQA with tp above kv_heads, MLA always), which ``dcp`` undoes for the
    cache. Experts are split over ``ep`` ranks, or over ``tp`` where ep is 1; with attention replicas (``dp``) each
    step's shape is one replica's and the experts see the tokens of all. Pipeline stages count as one rank: latency is
    their sum.
    """

    def __init__(self, spec: ModelSpec, layout: ParallelLayout, *, fp8: bool, fp4: bool = False) -> None:
        self.spec, self.layout = spec, layout
        tp, precision = layout.tp, spec.precision
        self._expert_split = max(layout.ep, tp)
        self._gather = layout.dp if layout.ep > 1 else 1
        wide_linear = spec.layers * spec.attention_params + spec.dense_layers * 3 * spec.hidden * spec.ffn
        shared = spec.moe_layers * spec.shared_experts * spec.expert_params
        router = spec.moe_layers * spec.hidden * spec.experts
        self._linear_bytes = ((wide_linear + shared) * attention_bytes(precision) + router * 2.0) / tp
        self._linear_bytes += spec.head_params * 2.0 / tp
        self._expert_bytes = spec.moe_layers * spec.expert_params * WEIGHT_BYTES[precision]
        self._linear_flops = 2.0 * (wide_linear + shared + router) / tp
        self._expert_flops = 2.0 * spec.moe_layers * spec.experts_per_token * spec.expert_params / self._expert_split
        self._head_flops = 2.0 * spec.head_params / tp
        self._narrow_linear = fp8 and precision == "fp8"
        self._narrow_experts = self._narrow_linear or (fp4 and precision == "mxfp4")
        self._padding = 0.0
        if self._narrow_linear:  # unlike mxfp4, which has kernels without padding
            rows = (ALIGN - 1) * spec.experts / self._expert_split
            self._padding = 2.0 * spec.moe_layers * rows * spec.expert_params
        width = spec.hidden * 10 + (2 * spec.heads * spec.head_dim + 3 * spec.ffn) / tp
        self._act_bytes = ACT_BYTES * spec.layers * width
        self._routed_bytes = ACT_BYTES * spec.moe_layers * spec.experts_per_token * spec.hidden
        self._full_layers = spec.layers - spec.sliding_layers - spec.linear_layers
        self._token_kv = spec.kv_elements * KV_BYTES / kv_split(spec, layout)
        width_qk = spec.kv_lora_rank * 2 + spec.rope_dim if spec.mla else 2 * spec.head_dim
        self._pair_flops = 2.0 * spec.heads * width_qk / tp
        self._link_bytes = 2.0 * spec.layers * spec.hidden * ACT_BYTES * 2.0 * (tp - 1) / tp if tp > 1 else 0.0
        self._collectives = 2.0 * spec.layers if tp > 1 else 0.0
        if self._gather > 1:  # tokens travel to their experts and back
            travel = min(spec.experts_per_token, layout.ep) * (1.0 - 1.0 / layout.ep)
            self._link_bytes += 2.0 * spec.moe_layers * travel * spec.hidden * ACT_BYTES / tp
            self._collectives += 2.0 * spec.moe_layers

    def of(self, shape: StepShape) -> Work:
        """The work of one iteration."""
        tokens = shape.tokens
        routed = tokens * self._gather
        linear = self._linear_flops * tokens
        expert = self._expert_flops * routed
        head = self._head_flops * max(shape.sampled, 1.0)
        kv_bytes, pairs = self._attention(shape)
        return Work(
            linear_bytes=self._linear_bytes + tokens * self._act_bytes,
            linear_wide=head if self._narrow_linear else linear + head,
            linear_narrow=linear if self._narrow_linear else 0.0,
            expert_bytes=self.touched(routed) / self._expert_split * self._expert_bytes,
            expert_wide=0.0 if self._narrow_experts else expert,
            expert_narrow=expert + self._padding if self._narrow_experts else 0.0,
            attention_bytes=kv_bytes,
            attention_flops=pairs * self._pair_flops,
            routed_bytes=routed * self._routed_bytes,
            logits=shape.sampled * self.spec.vocab,
            link_bytes=tokens * self._link_bytes,
            collectives=self._collectives,
        )

    def touched(self, tokens: float) -> float:
        """Expected experts of a layer that ``tokens`` tokens meet."""
        spec = self.spec
        if not spec.moe_layers:
            return 0.0
        return float(spec.experts * (1.0 - (1.0 - spec.experts_per_token / spec.experts) ** tokens))

    def _attention(self, shape: StepShape) -> tuple[float, float]:
        """Bytes of cache read and written, and (query, key) pairs, over all layers."""
        spec = self.spec
        context, pairs = shape.decode_context + shape.prefill_context, shape.decode_context + shape.prefill_pairs
        layers = self._full_layers
        bytes_read, all_pairs = layers * context * self._token_kv, layers * pairs
        if spec.sliding_layers and shape.sequences:
            window = spec.sliding_window or spec.max_context
            seen = min(context, shape.sequences * window)
            bytes_read += spec.sliding_layers * seen * self._token_kv
            all_pairs += spec.sliding_layers * min(pairs, shape.tokens * window)
        return bytes_read + spec.caching_layers * shape.tokens * self._token_kv, all_pairs


def kv_split(spec: ModelSpec, layout: ParallelLayout) -> float:
    """By how much the cache of one rank is smaller than the whole."""
    heads = 1 if spec.mla else spec.kv_heads
    return float(min(layout.tp, heads) * layout.dcp)

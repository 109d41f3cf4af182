"""Models as data: what a forward pass reads and computes follows from these numbers alone.

A description comes from the project's files, from a user's file of the same form, or from any Hugging Face
``config.json``. A model whose attention is partly linear or sparse is described approximately, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from pydantic import Field, ValidationError, model_validator

from energyopt.core.config import Config, describe_validation
from energyopt.core.errors import ConfigError, NotFoundError

from . import datafiles

Precision = Literal["bf16", "fp8", "mxfp4", "int4"]
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 4.25 / 8, "int4": 4.25 / 8}
"""Bytes of one weight with its share of the scales (a scale of 8 bits a group of 32, or of 16 a group of 64)."""
_SUFFIX = re.compile(r"-(instruct|thinking|it|fp8|bf16|awq|int4|mxfp4|gguf|hf|base|\d{4})$")
_SAME_SHAPE = {
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3-8b": "llama-3.1-8b",
    "deepseek-v3.1": "deepseek-v3",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
}
"""Released models that have the shape of another one."""


class ModelSpec(Config):
    """Dimensions of a decoder. ``moe_layers`` of ``layers`` have experts; 0 fields are features it lacks.

    ``kv_lora_rank`` > 0 marks latent attention (MLA), whose cache is one latent and one rope vector a token.
    """

    name: str
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab: int = Field(ge=1)
    ffn: int = Field(0, ge=0)
    tied_embeddings: bool = False
    experts: int = Field(0, ge=0)
    experts_per_token: int = Field(0, ge=0)
    shared_experts: int = Field(0, ge=0)
    moe_ffn: int = Field(0, ge=0)
    moe_layers: int = Field(0, ge=0)
    q_lora_rank: int = Field(0, ge=0)
    kv_lora_rank: int = Field(0, ge=0)
    rope_dim: int = Field(0, ge=0)
    nope_dim: int = Field(0, ge=0)
    v_head_dim: int = Field(0, ge=0)
    sliding_window: int = Field(0, ge=0)
    sliding_layers: int = Field(0, ge=0)
    linear_layers: int = Field(0, ge=0)
    max_context: int = Field(ge=1)
    precision: Precision = "bf16"
    approximate: bool = False

    @model_validator(mode="after")
    def _parts_fit(self) -> ModelSpec:
        if self.moe_layers > self.layers or (self.moe_layers and not (self.experts and self.moe_ffn)):
            raise ValueError("moe_layers needs experts and moe_ffn and is at most layers")
        if self.moe_layers < self.layers and not self.ffn:
            raise ValueError("ffn is 0 although some layers have no experts")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} is not between 1 and {self.experts}")
        if self.sliding_layers + self.linear_layers > self.layers:
            raise ValueError("sliding_layers and linear_layers together exceed layers")
        return self

    @property
    def moe(self) -> bool:
        return self.moe_layers > 0

    @property
    def mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention projections."""
        if not self.mla:
            return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        query = self.heads * (self.nope_dim + self.rope_dim)
        down = self.hidden * (self.kv_lora_rank + self.rope_dim)
        up = self.kv_lora_rank * self.heads * (self.nope_dim + self.v_head_dim)
        out = self.heads * self.v_head_dim * self.hidden
        queries = self.q_lora_rank * (self.hidden + query) if self.q_lora_rank else self.hidden * query
        return queries + down + up + out

    @property
    def expert_params(self) -> int:
        """Weights of one expert (gate, up, down)."""
        return 3 * self.hidden * self.moe_ffn

    @property
    def dense_layers(self) -> int:
        return self.layers - self.moe_layers

    @property
    def head_params(self) -> int:
        """Weights of the output projection."""
        return self.vocab * self.hidden

    @property
    def total_params(self) -> int:
        """All weights, embeddings included once or twice as the model ties them."""
        experts = self.moe_layers * (
            (self.experts + self.shared_experts) * self.expert_params + self.hidden * self.experts
        )
        dense = self.dense_layers * 3 * self.hidden * self.ffn
        embeddings = self.head_params * (1 if self.tied_embeddings else 2)
        return self.layers * self.attention_params + experts + dense + embeddings

    @property
    def active_params(self) -> int:
        """Weights that one token meets."""
        idle = self.moe_layers * (self.experts - self.experts_per_token) * self.expert_params
        return self.total_params - idle

    @property
    def kv_elements(self) -> int:
        """Numbers that one layer caches for one token."""
        return self.kv_lora_rank + self.rope_dim if self.mla else 2 * self.kv_heads * self.head_dim

    @property
    def caching_layers(self) -> int:
        """Layers whose cache grows with the context (linear ones keep a state of fixed size)."""
        return self.layers - self.linear_layers

    def kv_bytes_per_token(self, element: float = 2.0) -> float:
        """Cache of one token over all layers, as allocated; a sliding layer stops growing at its window."""
        return self.caching_layers * self.kv_elements * element

    def weight_bytes(self, precision: Precision | None = None) -> float:
        """Bytes of all weights: projections and experts in the given precision, embeddings in bf16.

        ``mxfp4`` quantizes the experts only.
        """
        chosen = precision or self.precision
        embeddings = self.head_params * (1 if self.tied_embeddings else 2)
        experts = self.moe_layers * self.experts * self.expert_params
        rest = self.total_params - embeddings - experts
        return embeddings * 2.0 + experts * WEIGHT_BYTES[chosen] + rest * attention_bytes(chosen)


def precision_of(text: str | None) -> Precision | None:
    """A precision by its name; None for nothing. Raises ConfigError naming what there is."""
    for name in get_args(Precision):
        if name == text:
            return cast(Precision, name)
    if not text:
        return None
    raise ConfigError(f"{text!r} is not a precision: there are {', '.join(get_args(Precision))}.")


def attention_bytes(precision: Precision) -> float:
    """Bytes of a weight outside the experts: mxfp4 checkpoints keep those in bf16."""
    return 2.0 if precision == "mxfp4" else WEIGHT_BYTES[precision]


def load_model_spec(name: str, precision: Precision | None = None) -> ModelSpec:
    """A model by name, by the path of a user's file, or by that of a Hugging Face ``config.json``.

    A name may carry its organisation and the suffixes of a variant (``-Instruct-2507``, ``-FP8``), which choose the
    precision but not the shape. Raises NotFoundError, ConfigError.
    """
    if name.endswith(".json"):
        document = datafiles.load("models", name)
        spec = parse_model(document) if "spec" in document else from_hf_config(document)
    else:
        spec = parse_model(datafiles.load("models", _known(name)))
        found = precision or _precision_in(name) or spec.precision
        return spec.model_copy(update={"precision": found})
    return spec if precision is None else spec.model_copy(update={"precision": precision})


def parse_model(document: Mapping[str, Any]) -> ModelSpec:
    """A model from the content of its file: ``spec``, and ``kind`` "approximate" where the shape is not exact."""
    body = document.get("spec")
    if not isinstance(body, Mapping):
        raise ConfigError("The model file has no object named 'spec'.")
    return _spec({**body, "approximate": document.get("kind") == "approximate"})


def _spec(body: Mapping[str, Any]) -> ModelSpec:
    try:
        return ModelSpec.model_validate(body)
    except ValidationError as error:
        raise ConfigError(describe_validation(ModelSpec, error)) from error


def _known(name: str) -> str:
    """The name of the file that has this model's shape."""
    stem = name.rsplit("/", 1)[-1].lower().removeprefix("meta-")
    shipped = datafiles.names("models")
    wanted = stem
    while wanted not in shipped and wanted not in _SAME_SHAPE and _SUFFIX.search(wanted):
        wanted = _SUFFIX.sub("", wanted)
    wanted = _SAME_SHAPE.get(wanted, wanted)
    variants = [wanted, f"{wanted}-instruct", f"{wanted}-v0.1"]
    for candidate in variants:
        if candidate in shipped:
            return candidate
    raise NotFoundError(
        f"No model is named {name!r}: there are {', '.join(shipped)}; give the path of its config.json instead."
    )


def _precision_in(name: str) -> Precision | None:
    lower = name.lower()
    for word, precision in (("fp8", "fp8"), ("awq", "int4"), ("int4", "int4"), ("mxfp4", "mxfp4"), ("bf16", "bf16")):
        if word in lower:
            return precision  # type: ignore[return-value]  # the table's second column is Precision
    return None


def from_hf_config(config: Mapping[str, Any]) -> ModelSpec:
    """The shape in a Hugging Face ``config.json``; a multimodal one is read at its ``text_config``.

    Raises ConfigError naming the field that is missing.
    """
    nested = config.get("text_config")
    body: Mapping[str, Any] = {**config, **nested} if isinstance(nested, Mapping) else config
    layers, heads, hidden = (_need(body, key) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    experts = _first(body, "num_experts", "n_routed_experts", "num_local_experts")
    kinds = body.get("layer_types")
    kinds = kinds if isinstance(kinds, list) else []
    rope, nope = _first(body, "qk_rope_head_dim"), _first(body, "qk_nope_head_dim")
    dense = _first(body, "first_k_dense_replace") if experts else layers
    ffn = _first(body, "intermediate_size")
    return _spec(
        {
            "name": str(config.get("_name_or_path") or config.get("model_type") or "config.json"),
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "kv_heads": _first(body, "num_key_value_heads") or heads,
            "head_dim": _first(body, "head_dim") or (rope + nope) or hidden // heads,
            "vocab": _need(body, "vocab_size"),
            "ffn": ffn,
            "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
            "experts": experts,
            "experts_per_token": _first(body, "num_experts_per_tok", "experts_per_token") if experts else 0,
            "shared_experts": _first(body, "n_shared_experts") if experts else 0,
            "moe_ffn": (_first(body, "moe_intermediate_size") or ffn) if experts else 0,
            "moe_layers": layers - dense,
            "q_lora_rank": _first(body, "q_lora_rank"),
            "kv_lora_rank": _first(body, "kv_lora_rank"),
            "rope_dim": rope,
            "nope_dim": nope,
            "v_head_dim": _first(body, "v_head_dim"),
            "sliding_window": _first(body, "sliding_window"),
            "sliding_layers": kinds.count("sliding_attention"),
            "linear_layers": kinds.count("linear_attention"),
            "max_context": _need(body, "max_position_embeddings"),
            "precision": _quantization(body),
            "approximate": "linear_attention" in kinds,
        }
    )


def _quantization(body: Mapping[str, Any]) -> str:
    found = body.get("quantization_config")
    method = str(found.get("quant_method", "")) if isinstance(found, Mapping) else ""
    return {"fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4", "compressed-tensors": "int4"}.get(
        method, "bf16"
    )


def _first(body: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = body.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _need(body: Mapping[str, Any], key: str) -> int:
    value = _first(body, key)
    if value <= 0:
        raise ConfigError(f"The model's config has no positive integer {key!r}.")
    return value

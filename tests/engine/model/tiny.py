"""Sizes of tiny random models, for transformers' own configurations, and how one comes on disk."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Two layers, four heads over two key-value heads, and weights large enough that logits differ."""

TINY: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""With room for a token of each byte."""

SPREAD: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "head_dim": 8,
}
"""Layers and heads that many numbers of ranks divide, and a vocabulary that none does."""

EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def save_tiny(directory: Path, **changes: Any) -> Any:
    """Write a random Llama with a byte-level tokenizer; returns transformers' model of the same weights."""
    torch.manual_seed(changes.pop("seed", 0))
    shard_size = changes.pop("max_shard_size", "50MB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = LlamaForCausalLM(LlamaConfig(**{**TINY, **changes}))
        model.eval()
        for name, value in model.named_parameters():
            if name.endswith(("norm.weight", ".bias")):
                torch.nn.init.normal_(value, mean=1.0 if "norm" in name else 0.0, std=0.2)
        model.save_pretrained(directory, max_shard_size=shard_size)
    save_bytes(directory)
    return model


def save_experts(directory: Path, **changes: Any) -> None:
    """Write a random Qwen3 with eight experts, as ``save_tiny`` writes a Llama."""
    torch.manual_seed(changes.pop("seed", 1))
    shape = {**TINY, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "pad_token_id": 0, **EXPERTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**shape, **changes})).save_pretrained(directory)
    save_bytes(directory)


def save_bytes(directory: Path) -> None:
    """Write a tokenizer with one token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))

"""Kimi Linear against its paper's formulas, in float64 and token by token, read straight from the checkpoint.

Written from "Kimi Linear: An Expressive, Efficient Attention Architecture" (2025): the recurrence of equation 1, its
parametrisation in section 3, latent attention without positions, and experts chosen by sigmoid scores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes

Array = npt.NDArray[np.float64]
HEADS, WIDTH, TAPS, NOPE, ROPE, LATENT, VALUE, EPS = 2, 6, 4, 5, 4, 12, 7, 1e-5
EXPERTS, TOP_K, SCALE = 5, 2, 1.5
KINDS = ["linear_attention", "full_attention", "linear_attention"]
VALUES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 30,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "initializer_range": 0.15,
    "max_position_embeddings": 256,
    "layer_types": KINDS,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "routed_scaling_factor": SCALE,
    "q_lora_rank": None,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "linear_head_dim": WIDTH,
    "linear_num_heads": HEADS,
    "linear_conv_kernel_dim": TAPS,
    "rms_norm_eps": EPS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def swish(x: Array) -> Array:
    return x * sigmoid(x)


def norm(x: Array, weight: Array, eps: float = EPS) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight)


class Weights:
    """The tensors of one layer."""

    def __init__(self, tensors: dict[str, Array], prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> Array:
        return self._tensors[f"{self._prefix}{name}.weight"]

    def bare(self, name: str) -> Array:
        return self._tensors[self._prefix + name]


def delta_attention(w: Weights, x: Array) -> Array:
    """S <- (I - b k k^T) Diag(a) S + b k v^T and o = S^T q, a head and a token at a time."""
    rows = len(x)
    q, k, v = (convolved(x @ w[f"{part}_proj"].T, w[f"{part}_conv1d"][:, 0]) for part in "qkv")
    fade = x @ w["f_a_proj"].T @ w["f_b_proj"].T + w.bare("dt_bias")
    rate = np.exp(w.bare("A_log")).reshape(HEADS, 1)
    decay = np.exp(-rate * np.log1p(np.exp(fade)).reshape(rows, HEADS, WIDTH))
    beta, gate = sigmoid(x @ w["b_proj"].T), sigmoid(x @ w["g_a_proj"].T @ w["g_b_proj"].T)
    out = np.zeros((rows, HEADS, WIDTH))
    for head in range(HEADS):
        own = slice(head * WIDTH, (head + 1) * WIDTH)
        state = np.zeros((WIDTH, WIDTH))
        for row in range(rows):
            key, query = (one[row, own] / np.sqrt((one[row, own] ** 2).sum() + 1e-6) for one in (k, q))
            b = beta[row, head]
            state = (np.eye(WIDTH) - b * np.outer(key, key)) @ np.diag(decay[row, head]) @ state
            state += b * np.outer(key, v[row, own])
            out[row, head] = state.T @ query * WIDTH**-0.5
    return np.asarray((norm(out, w["o_norm"]).reshape(rows, -1) * gate) @ w["o_proj"].T)


def convolved(x: Array, taps: Array) -> Array:
    """Causal, a channel at a time: the last tap weighs the newest input."""
    out = np.zeros_like(x)
    for row in range(len(x)):
        for back in range(min(TAPS, row + 1)):
            out[row] += taps[:, TAPS - 1 - back] * x[row - back]
    return swish(out)


def latent_attention(w: Weights, x: Array) -> Array:
    """Keys and values are made from the latent vector head by head; nothing is turned."""
    rows, heads = len(x), VALUES["num_attention_heads"]
    token = x @ w["kv_a_proj_with_mqa"].T
    latent, shared = norm(token[:, :LATENT], w["kv_a_layernorm"], 1e-6), token[:, LATENT:]
    queries = (x @ w["q_proj"].T).reshape(rows, heads, NOPE + ROPE)
    pairs = (latent @ w["kv_b_proj"].T).reshape(rows, heads, NOPE + VALUE)
    out = np.zeros((rows, heads, VALUE))
    for head in range(heads):
        keys = np.concatenate((pairs[:, head, :NOPE], shared), axis=1)
        for row in range(rows):
            scores = np.exp(keys[: row + 1] @ queries[row, head] * (NOPE + ROPE) ** -0.5)
            out[row, head] = scores / scores.sum() @ pairs[: row + 1, head, NOPE:]
    return np.asarray(out.reshape(rows, -1) @ w["o_proj"].T)


def feed_forward(
    w: Weights, prefix: str, x: Array, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> Array:
    gate, up, down = (w[prefix + name] for name in names)
    return np.asarray((swish(x @ gate.T) * (x @ up.T)) @ down.T)


def experts(w: Weights, x: Array) -> Array:
    out = feed_forward(w, "block_sparse_moe.shared_experts.", x)
    scores = sigmoid(x @ w["block_sparse_moe.gate"].T)
    for row, line in enumerate(scores):
        chosen = np.argsort(-(line + w.bare("block_sparse_moe.gate.e_score_correction_bias")))[:TOP_K]
        for expert in chosen:
            said = feed_forward(w, f"block_sparse_moe.experts.{expert}.", x[row], ("w1", "w3", "w2"))
            out[row] += SCALE * line[expert] / line[chosen].sum() * said
    return out


def logits(directory: Path, tokens: list[int]) -> Array:
    loaded = load_file(directory / "model.safetensors")
    tensors = {name: value.astype(np.float64) for name, value in loaded.items()}
    x = tensors["model.embed_tokens.weight"][tokens]
    for index, kind in enumerate(KINDS):
        layer = Weights(tensors, f"model.layers.{index}.")
        attention = Weights(tensors, f"model.layers.{index}.self_attn.")
        mix = delta_attention if kind == "linear_attention" else latent_attention
        x = x + mix(attention, norm(x, layer["input_layernorm"]))
        normed = norm(x, layer["post_attention_layernorm"])
        x = x + (experts(layer, normed) if index else feed_forward(layer, "block_sparse_moe.", normed))
    return np.asarray(norm(x, tensors["model.norm.weight"]) @ tensors["lm_head.weight"].T)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, family_saver: Callable[..., Any]) -> Path:
    path = tmp_path_factory.mktemp("kimi")
    family_saver(path, "KimiLinearConfig", "KimiLinearForCausalLM", VALUES)
    return path


def test_the_formulas_of_the_paper(directory: Path, record: Callable[..., Any]) -> None:
    kv = KvConfig(block_tokens=4, memory_bytes=Bytes(2**20))
    config = EngineConfig(model=str(directory), dtype="float32", device="cpu", threads=1, kv=kv)
    config = config.model_copy(update={"max_num_batched_tokens": 10, "max_num_seqs": 2})
    prompt = [3 + i * 7 % 37 for i in range(29)]
    requests, rows = record(config, [prompt, prompt[:11], [*prompt, 5]], 4)
    assert requests[2].cached_tokens > 0
    for request in requests:
        wanted = logits(directory, [*request.prompt, *request.output])
        assert wanted.std() > 0.1
        for count in range(len(request.prompt), request.num_tokens):
            assert np.abs(rows[request.id, count].numpy() - wanted[count - 1]).max() <= 1e-4

"""MXFP4 against the format's definition, bit by bit, and gpt-oss as it is published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes
from engine.model.mxfp4 import dequantize_mxfp4
from engine.models import load_model
from engine.parallel.ports import Collective, Place


def e2m1(code: int) -> float:
    """Sign, two bits of exponent with bias 1, one bit of mantissa; exponent 0 is subnormal. No infinities, no NaN."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return -magnitude if sign else magnitude


def test_every_code_under_every_usual_scale() -> None:
    """Sixteen codes and their partners in the other half of the byte, scales from 2^-60 to 2^60."""
    scales = torch.arange(67, 188, dtype=torch.uint8)
    blocks = torch.arange(16, dtype=torch.uint8).repeat(len(scales), 1, 1)
    blocks = blocks | blocks.flip(-1) << 4
    got = dequantize_mxfp4(blocks, scales[:, None])
    assert got.shape == (len(scales), 32)
    assert got.dtype == torch.bfloat16
    for line, scale in zip(got.tolist(), scales.tolist(), strict=True):
        wanted = [
            e2m1(code) * 2.0 ** (scale - 127)
            for pair in zip(range(16), reversed(range(16)), strict=True)
            for code in pair
        ]
        assert line == wanted


def test_groups_stand_in_order_and_keep_their_scales() -> None:
    blocks = torch.randint(0, 256, (3, 5, 4, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scales = torch.randint(120, 130, (3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    got = dequantize_mxfp4(blocks, scales)
    assert got.shape == (3, 5, 128)
    byte, exponent = int(blocks[2, 1, 3, 7]), int(scales[2, 1, 3]) - 127
    assert got[2, 1, 3 * 32 + 14] == e2m1(byte & 15) * 2.0**exponent
    assert got[2, 1, 3 * 32 + 15] == e2m1(byte >> 4) * 2.0**exponent


HIDDEN, WIDTH, EXPERTS = 32, 64, 3


def packed(shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks and scales of a tensor (..., columns)."""
    generator = torch.Generator().manual_seed(seed)
    groups = shape[-1] // 32
    blocks = torch.randint(0, 256, (*shape[:-1], groups, 16), dtype=torch.uint8, generator=generator)
    return blocks, torch.randint(121, 125, (*shape[:-1], groups), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, family_saver: Callable[..., Any]) -> tuple[Path, Any]:
    """A tiny gpt-oss as it is published, experts packed, and transformers' model of the same values."""
    path = tmp_path_factory.mktemp("packed")
    values = {
        "vocab_size": 40, "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2, "layer_types": ["full_attention"], "max_position_embeddings": 256,
        "initializer_range": 0.1, "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }  # fmt: skip
    oracle = family_saver(path, "GptOssConfig", "GptOssForCausalLM", values)
    tensors = load_file(path / "model.safetensors")
    for number, (part, shape) in enumerate(
        {"gate_up_proj": (EXPERTS, 2 * WIDTH, HIDDEN), "down_proj": (EXPERTS, HIDDEN, WIDTH)}.items()
    ):
        blocks, scales = packed(shape, number)
        getattr(oracle.model.layers[0].mlp.experts, part).data = dequantize_mxfp4(blocks, scales).float().mT
        name = f"model.layers.0.mlp.experts.{part}"
        del tensors[name]
        tensors |= {name + "_blocks": blocks, name + "_scales": scales}
    save_file(tensors, path / "model.safetensors")
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "quantization_config": {"quant_method": "mxfp4"}}))
    return path, oracle


@pytest.mark.parametrize("ranks", [1, 2])
def test_packed_experts_give_the_logits_of_their_values(
    published: tuple[Path, Any], record: Callable[..., Any], in_ranks: Callable[..., Any], ranks: int
) -> None:
    path, oracle = published
    kv = KvConfig(block_tokens=4, memory_bytes=Bytes(2**20))
    config = EngineConfig(model=str(path), dtype="float32", device="cpu", threads=1, kv=kv)

    def served(rank: Collective) -> Any:
        loaded = load_model(config, Place(tensor=rank))
        return record(config, [list(range(3, 20))], 3, lambda recorder: recorder(loaded, config))

    for (request,), rows in in_ranks(ranks, served):
        with torch.inference_mode():
            wanted = oracle(torch.tensor([[*request.prompt, *request.output]])).logits[0]
        assert wanted.std() > 0.1
        for count in range(len(request.prompt), request.num_tokens):
            assert (rows[request.id, count] - wanted[count - 1]).abs().max() <= 1e-4

"""DeepSeek-V3 as it is published: weights of eight bits under a scale a block give the logits of their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ModelFormatError, UnsupportedModelError
from energyopt.core.units import Bytes
from engine.models import load_model
from engine.parallel.ports import Collective, Place

ROWS, COLUMNS = 8, 16
VALUES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 24, "intermediate_size": 20, "moe_intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 10, "kv_lora_rank": 12, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6, "v_head_dim": 5, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, family_saver: Callable[..., Any]) -> tuple[Path, Any]:
    """Every projection packed; transformers' model of the same values comes from a second checkpoint of plain ones."""
    packed, plain = tmp_path_factory.mktemp("packed"), tmp_path_factory.mktemp("plain")
    oracle = family_saver(packed, "DeepseekV3Config", "DeepseekV3ForCausalLM", VALUES)
    tensors = load_file(packed / "model.safetensors")
    values, generator = dict(tensors), torch.Generator().manual_seed(0)
    for name in [one for one in tensors if one.endswith("_proj.weight") or "kv_a_proj_with_mqa" in one]:
        rows, columns = tensors[name].shape
        codes = torch.randn(rows, columns, generator=generator).mul_(20).to(torch.float8_e4m3fn)
        scales = torch.rand(-(-rows // ROWS), -(-columns // COLUMNS), generator=generator) * 0.01 + 0.002
        wide = scales.repeat_interleave(ROWS, 0)[:rows].repeat_interleave(COLUMNS, 1)[:, :columns]
        values[name] = (codes.float() * wide).bfloat16().float()
        tensors |= {name: codes, name + "_scale_inv": scales}
    save_file(tensors, packed / "model.safetensors")
    settings = json.loads((packed / "config.json").read_text())
    quantized = {"quant_method": "fp8", "weight_block_size": [ROWS, COLUMNS]}
    (packed / "config.json").write_text(json.dumps({**settings, "quantization_config": quantized}))
    (plain / "config.json").write_text(json.dumps(settings))
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    return packed, type(oracle).from_pretrained(plain, attn_implementation="eager", dtype=torch.float32)


def config_of(path: Path) -> EngineConfig:
    kv = KvConfig(block_tokens=4, memory_bytes=Bytes(2**20))
    return EngineConfig(model=str(path), dtype="float32", device="cpu", threads=1, kv=kv)


@pytest.mark.parametrize("ranks", [1, 2])
def test_packed_weights_give_the_logits_of_their_values(
    published: tuple[Path, Any], record: Callable[..., Any], in_ranks: Callable[..., Any], ranks: int
) -> None:
    path, oracle = published
    config = config_of(path)

    def served(rank: Collective) -> Any:
        loaded = load_model(config, Place(tensor=rank))
        return record(config, [list(range(3, 20))], 3, lambda recorder: recorder(loaded, config))

    for (request,), rows in in_ranks(ranks, served):
        with torch.inference_mode():
            wanted = oracle(torch.tensor([[*request.prompt, *request.output]])).logits[0]
        assert wanted.std() > 0.1
        for count in range(len(request.prompt), request.num_tokens):
            assert (rows[request.id, count] - wanted[count - 1]).abs().max() <= 1e-4


def test_scales_that_do_not_fit_are_named(published: tuple[Path, Any]) -> None:
    path = published[0]
    settings = json.loads((path / "config.json").read_text())
    try:
        for blocks, error, words in (
            ([ROWS, 4], ModelFormatError, r"_scale_inv' has shape"),
            ([0, 4], ModelFormatError, r"weight_block_size = \(0, 4\)"),
            ([4], ModelFormatError, r"weight_block_size = \(4,\)"),
        ):
            changed = {**settings, "quantization_config": {"quant_method": "fp8", "weight_block_size": blocks}}
            (path / "config.json").write_text(json.dumps(changed))
            with pytest.raises(error, match=words):
                load_model(config_of(path))
        (path / "config.json").write_text(json.dumps({**settings, "quantization_config": {"quant_method": "awq"}}))
        with pytest.raises(UnsupportedModelError, match=r"'awq'.*none, fp8"):
            load_model(config_of(path))
    finally:
        (path / "config.json").write_text(json.dumps(settings))

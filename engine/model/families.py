"""The families that are known, and which of them a configuration belongs to."""

from __future__ import annotations

from typing import Any

from energyopt.core.errors import ModelFormatError, UnsupportedModelError

from ..files import shown
from .deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from .family import Family
from .gemma3 import GEMMA3
from .gpt_oss import GPT_OSS
from .hf_config import HfConfig
from .kimi_linear import KIMI_LINEAR
from .llama import LLAMA
from .qwen import QWEN2, QWEN3, QWEN3_MOE
from .qwen3_next import QWEN3_NEXT
from .spec import DecoderSpec

FAMILIES: tuple[Family[Any], ...] = (
    LLAMA,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    GEMMA3,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    QWEN3_NEXT,
    KIMI_LINEAR,
)


def family_of(config: HfConfig) -> Family[Any]:
    """By ``architectures`` or, where there are none, by ``model_type``. Raises UnsupportedModelError."""
    named = config.get("architectures")
    if named is None:
        kind = config.get("model_type")
        found = next((family for family in FAMILIES if kind in family.model_types), None)
        said = f"no architectures and the model_type {shown(kind)}"
    else:
        found = next((family for family in FAMILIES if named in [[name] for name in family.architectures]), None)
        said = f"the architectures {shown(named)}"
    if found is not None:
        return found
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UnsupportedModelError(f"{config.path} has {said}; supported are {known}.")


def read_spec(config: HfConfig, family: Family[Any], has_head: bool) -> DecoderSpec:
    """The model's numbers. Raises UnsupportedModelError or ModelFormatError naming the key."""
    for key in ("quantization_config", "compression_config"):
        if (method := config.part(key).get("quant_method")) not in (None, *family.formats):
            known = ", ".join(("none", *family.formats))
            raise UnsupportedModelError(
                f"{config.path}: weights quantized by {shown(method)} are not supported; for this family are: {known}."
            )
    spec: DecoderSpec = family.read(config, has_head)
    if problem := spec.problems():
        raise ModelFormatError(f"{config.path}: {problem}.")
    return spec


def fp8_blocks(config: HfConfig) -> tuple[int, int]:
    """Rows and columns that share a scale where weights have eight bits; 128 each if nothing is said."""
    found = config.part("quantization_config").numbers("weight_block_size") or (128, 128)
    if len(found) != 2 or min(found) < 1:
        raise ModelFormatError(f"{config.path}: weight_block_size = {shown(found)} is not two sizes of at least 1.")
    return found[0], found[1]

"""Matrix products with constant weights, in the form that this device multiplies fastest.

Measured on two cores with AVX2 and no bfloat16 instructions (all products of a 135M Llama, ms per step of 1 / 8 / 16 /
512 rows): float32 dense 50 / 100 / 133 / 794; bfloat16 dense 22 / 135 / 273 / over 8000; FBGEMM's packed float16
weights with float32 activations 21 / 28 / 48 / 846. So the packed form serves every batch from one copy of 2 bytes a
weight. With bfloat16 instructions the dense product runs at twice float32's rate, and is used there. float32 weights
in oneDNN's order take, on one core, 0.94 / 0.72 / 0.85 of the dense time for 1 / 16 / 512 rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]
"""``(rows, in)`` -> ``(rows, out)`` in the activations' type."""

_HALF_MAX = torch.finfo(torch.float16).max


class DenseLinear:
    """A weight ``(out, in)`` kept as it is; activations are cast to its type and the result back."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.to(self._weight.dtype), self._weight, self._bias).to(x.dtype)


class PlainLinear:
    """A weight that is widened to float32 at every use."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product = x.float() @ self._weight.float().T
        return (product if self._bias is None else product + self._bias.float()).to(x.dtype)


class PackedHalfLinear:
    """A float16 weight in FBGEMM's blocked order; float32 activations, sums and results."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(
            weight.float().contiguous(), None if bias is None else bias.float()
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x.contiguous(), self._packed)
        return product


class PackedFloatLinear:
    """A float32 weight in oneDNN's blocked order."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = None if bias is None else bias.float().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product


def has_native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware."""
    have = torch.cpu.get_capabilities()
    return bool(have.get("avx512_bf16") or have.get("amx_bf16") or have.get("bf16"))


def has_packed_half() -> bool:
    """Whether FBGEMM's float16 product exists here."""
    return "fbgemm" in _quantized_engines() and bool(torch.cpu.get_capabilities().get("avx2"))


def has_onednn() -> bool:
    """Whether this torch is built with oneDNN."""
    available: Callable[[], bool] = torch.backends.mkldnn.is_available
    return available()


def fastest_cpu_dtype() -> torch.dtype:
    """The weight type with the most tokens per second on this CPU: see the module's figures."""
    if has_native_bfloat16():
        return torch.bfloat16
    return torch.float16 if has_packed_half() else torch.float32


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, device: torch.device) -> Linear:
    """Bring a weight into its fastest form for ``dtype`` and ``device``.

    On a CPU without bfloat16 instructions a two-byte weight is rounded to ``dtype`` and then packed as float16: every
    bfloat16 between 6e-5 and 65504 is exact in it, smaller ones move by at most 3e-8. Larger ones stay dense.
    """
    rounded = weight.to(dtype)
    if rounded.dtype == torch.float32 and device.type == "cpu" and has_onednn():
        return PackedFloatLinear(rounded, bias)
    if _packs(rounded, device):
        return PackedHalfLinear(rounded, bias)
    return DenseLinear(rounded.to(device), None if bias is None else bias.to(device, dtype))


def make_plain_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, device: torch.device
) -> Linear:
    """The slow twin: the weight rounded to ``dtype``, the product in float32."""
    return PlainLinear(weight.to(device, dtype), None if bias is None else bias.to(device))


def _packs(weight: torch.Tensor, device: torch.device) -> bool:
    if device.type != "cpu" or weight.dtype == torch.float32 or not has_packed_half():
        return False
    if weight.dtype == torch.bfloat16 and has_native_bfloat16():
        return False
    return bool(weight.abs().amax() <= _HALF_MAX)


def _quantized_engines() -> list[str]:
    engines: list[str] = torch.backends.quantized.supported_engines
    return engines

"""Which instructions the native kernels may use: a table from what a CPU has to the compiler's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

_SIMD256 = ("avx2", "fma3", "f16c")
_SIMD512 = (*_SIMD256, "avx512_f", "avx512_bw", "avx512_vl", "avx512_vnni")
_FLAGS256 = ("-mavx2", "-mfma", "-mf16c")
_FLAGS512 = (*_FLAGS256, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni")


@dataclass(frozen=True, slots=True)
class Variant:
    """One build of the sources: ``needs`` are capabilities as torch names them, ``flags`` the compiler's options."""

    name: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]

    def runs_on(self, capabilities: Mapping[str, object]) -> bool:
        """Whether a CPU with these capabilities can run it."""
        return all(capabilities.get(name) is True for name in self.needs)


VARIANTS = (
    Variant("avx512-bf16", (*_SIMD512, "avx512_bf16"), (*_FLAGS512, "-mavx512bf16")),
    Variant("avx512", _SIMD512, _FLAGS512),
    Variant("avx2-vnni", (*_SIMD256, "avx_vnni"), (*_FLAGS256, "-mavxvnni")),
    Variant("avx2", _SIMD256, _FLAGS256),
    Variant("portable", (), ()),
)
"""The fastest first; the last runs everywhere."""


def runnable() -> tuple[Variant, ...]:
    """The variants that this CPU can run, the fastest first."""
    capabilities = torch.cpu.get_capabilities()
    return tuple(variant for variant in VARIANTS if variant.runs_on(capabilities))


def variant_named(name: str) -> Variant:
    """The variant called ``name``. Raises ValueError, with those known, for another."""
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    raise ValueError(f"Unknown variant {name!r}; known are {', '.join(variant.name for variant in VARIANTS)}.")

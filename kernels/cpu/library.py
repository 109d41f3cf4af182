"""The built kernels as Python calls them: signatures of every function, and nothing else.

Every function releases Python's lock while it runs. Pointers are addresses of arrays that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from .compiler import NoCompilerError, built
from .instructions import Variant, runnable

_VERSION = 2


class Shape(Structure):
    """``struct Shape`` of model.h."""

    _fields_ = (
        *((name, c_int32) for name in ("layers", "hidden", "inner", "heads", "kv_heads", "head_dim", "vocab")),
        ("eps", c_float),
    )


class StepBatch(Structure):
    """``struct Batch`` of model.h."""

    _fields_ = (
        *((name, c_int32) for name in ("rows", "spans", "wanted", "stride", "entries")),
        *((name, c_void_p) for name in ("tokens", "positions")),
        *((name, c_void_p) for name in ("span_row", "span_start", "span_count", "span_table", "tables")),
        ("wanted_rows", c_void_p),
        ("logits", c_void_p),
    )


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "native_version": (c_int, ()),
    "native_variant": (c_char_p, ()),
    "native_error": (c_char_p, ()),
    "native_open": (c_void_p, (POINTER(Shape), c_void_p, c_int)),
    "native_close": (None, (c_void_p,)),
    "native_matrix": (c_int, (c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p)),
    "native_pack": (None, (c_void_p, c_int, c_int, c_int, c_int, c_void_p)),
    "native_tie": (None, (c_void_p,)),
    "native_norm": (c_int, (c_void_p, c_int, c_int, c_void_p)),
    "native_block_size": (c_int64, (c_int, c_int)),
    "native_pool": (None, (c_void_p, c_void_p, c_int, c_int)),
    "native_step": (c_int, (c_void_p, POINTER(StepBatch), c_int)),
    "native_multiply": (c_int, (c_void_p, c_int, c_int, c_void_p, c_int, c_void_p, c_int, c_int)),
    "native_read_rate": (c_int, (c_size_t, c_int, c_double, POINTER(c_double))),
    "native_product_rate": (c_int, (c_int, c_double, POINTER(c_double))),
}


def open_library(path: Path) -> ctypes.CDLL:
    """Load a built library. Raises NoCompilerError if it is not one of ours."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NoCompilerError(f"{path} cannot be loaded: {error}.") from error
    if library.native_version() != _VERSION:
        raise NoCompilerError(f"{path} is of another version.")
    return library


@cache
def library_for(variant: Variant) -> ctypes.CDLL:
    """The library of ``variant``, built at first use. Raises NoCompilerError."""
    return open_library(built(variant))


def best_library() -> ctypes.CDLL:
    """The fastest variant for this CPU. Raises NoCompilerError."""
    return library_for(runnable()[0])

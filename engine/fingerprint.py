"""Names for KV content: equal only where model, number format and shape are equal, on any machine."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

from xxhash import xxh3_128

from energyopt.core.errors import ModelNotFoundError

from .batch import CacheShape
from .models import OpenedModel

LAYOUT_VERSION = 1
"""Of what a block's bytes mean; raise it when a runner arranges them differently."""

_READ_AT_ONCE = 1 << 26


def kv_layout(loaded: OpenedModel, shape: CacheShape, form: str = "") -> str:
    """32 hexadecimal digits over the model's own files, the number format and the shape of a block.

    ``form`` names what else decides a block's bytes: a runner's own arrangement, the rounding of weights at load.

    The files are read once more, which is as fast as memory while they are cached from loading.
    """
    digest = xxh3_128()
    spec = replace(loaded.spec, name="")  # what a model is called does not change what it computes
    for part in (LAYOUT_VERSION, spec, loaded.dtype, shape.block_tokens, shape.bytes_per_block, form):
        digest.update(f"{part!r}\n".encode())
    for file in _content(loaded.path):
        _feed(digest, file)
    return digest.hexdigest()


def _content(path: Path) -> list[Path]:
    """The files whose bytes decide what the model computes, in a fixed order."""
    if path.is_file():
        return [path]
    return sorted([*path.glob("*.safetensors"), *path.glob("config.json")])


def _feed(digest: xxh3_128, file: Path) -> None:
    try:
        with (
            file.open("rb") as handle,
            mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            for at in range(0, len(view), _READ_AT_ONCE):
                with view[at : at + _READ_AT_ONCE] as part:
                    digest.update(part)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{file} cannot be read to name the model's KV blocks: {error}.") from error

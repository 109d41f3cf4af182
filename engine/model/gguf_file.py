"""The GGUF container: header, metadata and raw tensor bytes, read through a memory map.

The ``gguf`` package knows the format's constants and the quantizations and is used for both; its reader spends 3 s on
the metadata of a 49k-word vocabulary (one memory-map slice per string) where this one spends 0.2 s, and it does not
bound what a hostile file makes it read. Format: the GGUF specification in the ggml repository.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from energyopt.core.errors import ModelFormatError, UnsupportedModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. ``shape`` is row-major (outermost first), ``offset`` counts from the file's start."""

    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    offset: int
    size: int


class GgufFile:
    """An open GGUF file.

    ``metadata`` maps keys to plain values. Raises ModelFormatError when the header is not one, or when a tensor would
    lie beyond the end (a truncated file), UnsupportedModelError for a version or tensor type that is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _open_map(path)
        cursor = _Cursor(self._map, path)
        if cursor.take(4) != b"GGUF":
            raise ModelFormatError(f"{path} is not a GGUF file: it does not begin with the bytes GGUF.")
        version = cursor.scalar("I")
        if version not in _VERSIONS:
            raise UnsupportedModelError(
                f"{path} is GGUF version {version}; versions 2 and 3 (little endian) are known."
            )
        num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
        self.metadata: dict[str, object] = {}
        for _ in range(num_keys):
            key = cursor.string()
            if key in self.metadata:
                raise ModelFormatError(f"{path} holds the metadata key {_shown(key)} twice.")
            self.metadata[key] = cursor.value(cursor.scalar("I"))
        self.tensors = self._read_infos(cursor, num_tensors)

    def _read_infos(self, cursor: _Cursor, count: int) -> dict[str, TensorInfo]:
        found: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = cursor.string()
            if name in found:
                raise ModelFormatError(f"{self.path} holds the tensor {_shown(name)} twice.")
            rank = cursor.scalar("I")
            if rank > _MAX_DIMENSIONS:
                raise ModelFormatError(
                    f"{self.path}: tensor {_shown(name)} claims {rank} dimensions; at most 4 are allowed."
                )
            shape = tuple(cursor.scalar("Q") for _ in range(rank))[::-1]
            found[name] = (shape, cursor.scalar("I"), cursor.scalar("Q"))
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelFormatError(f"{self.path}: alignment {alignment!r} is not a power of two.")
        base = -(-cursor.position // alignment) * alignment
        return {name: self._info(name, shape, kind, base + offset) for name, (shape, kind, offset) in found.items()}

    def _info(self, name: str, shape: tuple[int, ...], code: int, offset: int) -> TensorInfo:
        try:
            kind = gguf.GGMLQuantizationType(code)
        except ValueError as error:
            raise UnsupportedModelError(f"{self.path}: tensor {_shown(name)} has the unknown type {code}.") from error
        block, width = gguf.GGML_QUANT_SIZES[kind]
        elements = 1
        for extent in shape:
            elements *= extent
        if not shape or shape[-1] % block:
            raise ModelFormatError(
                f"{self.path}: tensor {_shown(name)} of shape {shape} is not whole {kind.name} blocks."
            )
        size = elements // block * width
        if offset + size > len(self._map):
            raise ModelFormatError(
                f"{self.path} is truncated: tensor {_shown(name)} ends at byte {offset + size}, "
                f"the file at {len(self._map)}."
            )
        return TensorInfo(shape, kind, offset, size)

    def load(self, name: str, part: slice = slice(None)) -> npt.NDArray[np.float32]:
        """``part`` of the tensor's rows, dequantized to float32.

        Raises ModelFormatError if the tensor is absent, UnsupportedModelError if its type is unknown.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelFormatError(f"{self.path} has no tensor {_shown(name)}.")
        raw = np.frombuffer(self._map, dtype=np.uint8, count=info.size, offset=info.offset)
        rows = raw.reshape(*info.shape[:-1], -1)[part] if len(info.shape) > 1 else raw
        try:
            values = gguf.quants.dequantize(rows, info.kind)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{self.path}: tensor {_shown(name)} is {info.kind.name}, which is not known."
            ) from error
        # A copy where nothing was dequantized: the map is read-only, which torch does not know.
        whole = np.array(values, dtype=np.float32, copy=None if values.flags.writeable else True)
        return whole.reshape(-1, *info.shape[1:]) if len(info.shape) > 1 else whole[part]


def _shown(name: str) -> str:
    """A name as a message repeats it: a hostile file's may be as long as the file."""
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}..."


def _open_map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelFormatError(f"{path} cannot be read: {error}.") from error


class _Cursor:
    """Reads forward through the header and never past the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise ModelFormatError(f"{self._path} is truncated: its header ends after byte {len(self._data)}.")
        chunk = self._data[self.position : end]
        self.position = end
        return chunk

    def scalar(self, code: str) -> int:
        value: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return value

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        return self.scalar(self._code(kind))

    def _array(self, kind: int, count: int) -> list[object]:
        if kind == _STRING:
            return self._many(self.string, count)
        if kind == _ARRAY:
            raise ModelFormatError(f"{self._path} holds nested metadata arrays, which no key uses.")
        code = self._code(kind)
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code))))

    def _many(self, read: Callable[[], object], count: int) -> list[object]:
        if count > len(self._data):  # each entry takes at least one byte
            raise ModelFormatError(f"{self._path} claims an array of {count} entries, more than it has bytes.")
        return [read() for _ in range(count)]

    def _code(self, kind: int) -> str:
        try:
            return _SCALARS[kind]
        except KeyError as error:
            raise ModelFormatError(f"{self._path} holds metadata of the unknown type {kind}.") from error

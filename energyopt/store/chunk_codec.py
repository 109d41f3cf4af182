"""Pieces of energy as a short blob: columns of differences, compressed. About 6 bytes a piece; read with bounds."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

from energyopt.core.errors import StoreError

from .energy_rows import Packed

MAX_PIECES = 100_000
_WIDTH = 8
_COLUMNS = 4


def encode_chunk(pieces: Sequence[Packed]) -> bytes:
    """Starts and nanojoules as differences, lengths and sources as they are; little-endian 64-bit, deflated."""
    columns = [
        _differences([piece.start_us for piece in pieces]),
        [piece.length_us for piece in pieces],
        _differences([piece.nanojoules for piece in pieces]),
        [piece.source for piece in pieces],
    ]
    return zlib.compress(b"".join(_bytes(column) for column in columns), 6)


def decode_chunk(payload: bytes, pieces: int) -> list[Packed]:
    """Raises StoreError for a blob that does not hold exactly ``pieces``, or more than MAX_PIECES."""
    if not 0 <= pieces <= MAX_PIECES:
        raise StoreError(f"A stored chunk claims {pieces} pieces: at most {MAX_PIECES} are allowed.")
    size = pieces * _WIDTH * _COLUMNS
    try:
        raw = zlib.decompressobj().decompress(payload, size + 1)
    except zlib.error as error:
        raise StoreError(f"A stored chunk is damaged: {error}.") from error
    if len(raw) != size:
        raise StoreError(f"A stored chunk is damaged: it does not hold {pieces} pieces.")
    width = pieces * _WIDTH
    starts, lengths, nanojoules, sources = (
        _numbers(raw[column * width : (column + 1) * width]) for column in range(_COLUMNS)
    )
    return [Packed(*entry) for entry in zip(accumulate(starts), lengths, accumulate(nanojoules), sources, strict=True)]


def _differences(values: Sequence[int]) -> list[int]:
    return [*values[:1], *(later - earlier for earlier, later in pairwise(values))]


def _bytes(values: Sequence[int]) -> bytes:
    column = array("q", values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _numbers(raw: bytes) -> array[int]:
    column = array("q")
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column

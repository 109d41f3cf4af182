"""What tests of the ways of blocks expect of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.disagg.errors import HandOverError, Reason
from engine.disagg.ports import Piece
from engine.kv.checksum import checksum

Make = Callable[..., Any]


def fails(reason: Reason) -> Any:
    return pytest.raises(HandOverError, check=lambda error: error.reason is reason)


def contents(pieces: Any) -> list[int]:
    """The byte of which each block consists; every one must be whole."""
    found: list[int] = []
    for piece in pieces:
        assert isinstance(piece, Piece)
        assert checksum(piece.view) == piece.checksum
        assert len(set(piece.view)) == 1
        found.append(piece.view[0])
    return found

"""The generated boards as they ship with this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .catalog import BOARDS, TUNING, Flavour

GENERATED = Path(__file__).resolve().parent / "generated"
Board = dict[str, Any]


def file_name(uid: str, flavour: Flavour | None) -> str:
    """Where a board's JSON lies in ``generated/``; only a board over SQL has flavours."""
    return f"{uid}.json" if flavour is None else f"{uid}.{flavour}.json"


def shipped_boards(flavour: Flavour) -> list[Board]:
    """Every board, the Tuning board for the chosen kind of database."""
    names = [file_name(uid, flavour if uid == TUNING else None) for uid in BOARDS]
    return [json.loads((GENERATED / name).read_text(encoding="utf-8")) for name in names]

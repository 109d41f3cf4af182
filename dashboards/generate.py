"""Writes the boards as committed JSON: ``python -m dashboards.generate`` after a change here or in the catalogue.

Needs ``grafana-foundation-sdk``, which no installation needs: boards ship as the files that this wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .boards import fleet, gpu, serving, tuning
from .catalog import PLUGINS
from .shipped import GENERATED, file_name


def texts() -> dict[str, str]:
    """Every generated file by name."""
    boards = [fleet.build(), gpu.build(), serving.build()]
    found = {file_name(board["uid"], None): dumped(board) for board in boards}
    for flavour in PLUGINS:
        board = tuning.build(flavour)
        found[file_name(board["uid"], flavour)] = dumped(board)
    return found


def dumped(board: dict[str, Any]) -> str:
    """JSON in one fixed form, so that a difference is a difference."""
    return json.dumps(board, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else GENERATED)

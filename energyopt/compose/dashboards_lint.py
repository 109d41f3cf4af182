"""The lint over the shipped boards, with an empty SQLite database of this version to ask about the SQL."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from dashboards.catalog import PLUGINS
from dashboards.lint import Finding, lint_boards
from dashboards.shipped import shipped_boards
from energyopt.core.errors import ConfigError
from energyopt.store.database import make_engine, open_store, parse_url


def lint_dashboards(folder: Path | None) -> list[Finding]:
    """Faults of the shipped boards, or of the JSON files in ``folder``. Raises ConfigError for what is no board."""
    with tempfile.TemporaryDirectory(prefix="energyopt-lint-") as place:
        address = f"sqlite:///{place}/empty.db"
        open_store(address).close()
        engine = make_engine(parse_url(address))
        try:
            if folder is not None:
                return lint_boards(_read(folder), lambda sql: _explain(engine, sql))
            found: list[Finding] = []
            for flavour in PLUGINS:
                found += lint_boards(shipped_boards(flavour), lambda sql: _explain(engine, sql))
            return list(dict.fromkeys(found))
        finally:
            engine.dispose()


def _explain(engine: Engine, sql: str) -> str | None:
    try:
        with engine.connect() as connection:
            connection.execute(text(f"EXPLAIN {sql}".replace(":", r"\:")))
    except SQLAlchemyError as error:
        return str(getattr(error, "orig", error))
    return None


def _read(folder: Path) -> list[dict[str, object]]:
    boards = []
    for path in sorted(folder.glob("*.json")):
        try:
            board = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as JSON: {error}.") from error
        if not isinstance(board, dict) or not {"panels", "templating"} <= set(board):
            raise ConfigError(f"{path} is not a Grafana dashboard in the classic model.")
        boards.append(board)
    if not boards:
        raise ConfigError(f"{folder} holds no *.json file.")
    return boards

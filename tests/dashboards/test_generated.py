"""The committed boards are what the code generates, complete, linked and stable."""

from __future__ import annotations

from typing import Any

from dashboards.catalog import BOARDS
from dashboards.shipped import GENERATED

Board = dict[str, Any]


def test_the_committed_boards_are_the_generated_ones(generated: dict[str, str]) -> None:
    assert sorted(generated) == sorted(path.name for path in GENERATED.glob("*.json"))
    for name, text in generated.items():
        assert (GENERATED / name).read_text(encoding="utf-8") == text, (
            f"{name} is stale: python -W ignore -m dashboards.generate"
        )


def test_every_board_has_its_uid_and_leads_to_all_others(boards: list[Board]) -> None:
    assert [(board["uid"], board["title"]) for board in boards] == list(BOARDS.items())
    for board in boards:
        assert {link["url"] for link in board["links"]} == {f"/d/{uid}" for uid in BOARDS if uid != board["uid"]}
        assert "id" not in board
        assert "version" not in board


def test_no_board_names_a_server(boards: list[Board]) -> None:
    for board in boards:
        for panel in board["panels"]:
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] in ("${datasource}", "${sql}")


def test_first_load_shows_everything(boards: list[Board]) -> None:
    """grafana boards that start with an empty choice show "No data" until someone chooses."""
    for board in boards:
        for variable in board["templating"]["list"]:
            if variable.get("multi"):
                assert variable["current"]["value"] == ["$__all"]
                assert variable["allValue"] == ".*"

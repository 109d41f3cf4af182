"""Pictures of the boards: ``pytest -m bench tests/bench/render``. Needs npm, its registry, Prometheus and Chromium.

Grafana's own panel library draws the shipped boards with what a real Prometheus and a real database answered to their
queries; units, thresholds, overrides and legends are the boards'. The pictures are kept in ``docs/boards``, for people
to look at. They are no screenshots of a Grafana server: kinds of panels that only the server has show their table.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import Connection

from dashboards.shipped import shipped_boards

PICTURES = Path(__file__).parents[3] / "docs" / "boards"
RANGE, STEP = 60, 2
"""Seconds that a picture shows, and between two of its points."""
LIMIT = 300_000
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    """A tab of Debian's Chromium that reaches nothing but this machine."""
    binary = os.environ.get("ENERGYOPT_CHROMIUM") or shutil.which("chromium")
    if binary is None:
        pytest.skip("no chromium: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, headless=True, args=CHROMIUM)
        yield browser.new_page(viewport={"width": 1500, "height": 1000})
        browser.close()


def answers_of(board: dict[str, Any], server: Any, truth: ModuleType, end: float) -> dict[int, list[dict[str, Any]]]:
    """What Prometheus answers to every query of a board, by panel."""
    found: dict[int, list[dict[str, Any]]] = {}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            text = re.sub(r"\$\{?(\w+)\}?", lambda match: truth.VARIABLES[match[1]], target["expr"])
            if target["instant"]:
                result = server.get("query", query=text, time=f"{end:.3f}")["result"]
                series = [{"metric": one["metric"], "values": [one["value"]]} for one in result]
            else:
                span = {"start": f"{end - RANGE:.3f}", "end": f"{end:.3f}", "step": str(STEP)}
                series = server.get("query_range", query=text, **span)["result"]
            answer = {"refId": target["refId"], "legend": target["legendFormat"], "format": target["format"]}
            found.setdefault(panel["id"], []).append({**answer, "series": series})
    return found


def draw(page: Page, folder: Path, address: str, board: dict[str, Any], answers: object, end: float) -> list[str]:
    """Keeps the board's picture and returns the titles of panels that show nothing; the page may raise no error."""
    data = {"board": board, "answers": answers, "range": {"from": (end - RANGE) * 1000, "to": end * 1000}}
    (folder / "data.json").write_text(json.dumps(data))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    page.set_viewport_size({"width": 1500, "height": rows * 38 + 60})  # tables draw only what is in sight
    page.goto(f"{address}/index.html")
    page.wait_for_selector("[data-panel]", timeout=60_000)
    page.wait_for_timeout(5000)
    picture = page.locator("#root > div").screenshot()
    assert errors == []
    name = board["uid"].removeprefix("energyopt-")
    keep(picture, PICTURES / f"{name}.png")
    return [
        str(one.get_attribute("data-panel"))
        for one in page.locator("[data-panel]").all()
        if one.locator(".nothing").count()
    ]


def keep(picture: bytes, path: Path) -> None:
    """Written with a palette: flat colours lose nothing that an eye would miss, and a repository stays small."""
    with Image.open(io.BytesIO(picture)) as image:
        flat = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    path.parent.mkdir(exist_ok=True)
    flat.save(path, optimize=True)
    assert path.stat().st_size < LIMIT


def drawn(page: Page, title: str) -> str:
    """The text of a panel."""
    return page.locator(f'[data-panel="{title}"]').inner_text()


def test_boards_over_prometheus(tab: Page, built: Path, address: str, prometheus: Any, truth: ModuleType) -> None:
    time.sleep(RANGE + truth.WINDOW)
    end = time.time()
    shown = {}
    for board in shipped_boards("postgresql")[:3]:
        missing = draw(tab, built, address, board, answers_of(board, prometheus, truth, end), end)
        assert missing == []
        if "First token in time" in {panel["title"] for panel in board["panels"]}:
            shown = {title: drawn(tab, title) for title in ("First token in time", "Power")}
    assert "100" in shown["First token in time"]
    assert f"{truth.POWER:.0f}" in shown["Power"]


def test_the_board_over_a_database(
    tab: Page, built: Path, address: str, asked: tuple[Connection, str], results: ModuleType
) -> None:
    connection, study = asked
    board = results.board(connection)
    answers: dict[int, list[dict[str, Any]]] = {}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            rows = results.ask(connection, results.sql_of(target), study)
            answers.setdefault(panel["id"], []).append({"refId": "A", "legend": "", "format": "table", "rows": rows})
    assert draw(tab, built, address, board, answers, time.time()) == []
    assert "50" in drawn(tab, "Energy saved")
